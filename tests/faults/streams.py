"""What many, rude and slow readers do to the service, and many writers to one session, measured."""

import asyncio
import hashlib
import re
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from app.adapters.postgres.sessions import PostgresSessions
from tests.faults.checker import Found, check, until_idle
from tests.faults.fleet import Replica
from tests.faults.generator import Load
from tests.faults.history import Submission
from tests.faults.http import Client
from tests.faults.model import Wish
from tests.faults.nemesis import GRACE_SECONDS
from tests.faults.postgres import Postgres
from tests.faults.readers import Reader
from tests.faults.relay import LOST, relaying
from tests.faults.scenarios import p99, settle
from tests.faults.world import TTL_SECONDS, World, world
from tests.support.checker import TENANT

HELD_SECONDS = 2.0
QUICK_SECONDS = 0.5
MOST_GROWTH_MB = 100
LET_GO_SECONDS = 40
"""A reader that takes nothing for thirty seconds is let go."""


@dataclass
class Measured:
    """What a measure came to."""

    name: str
    seed: int
    values: dict[str, Any]
    violations: list[str]
    known: list[str]
    seconds: float


@dataclass(frozen=True)
class Measure:
    """A measure, and how much of it in the short and in the long form."""

    name: str
    take: Callable[[World, dict[str, int]], Awaitable[dict[str, Any]]]
    short: dict[str, int]
    long: dict[str, int]
    replicas: int = 3
    ttl: float = TTL_SECONDS
    environment: dict[str, str] = field(default_factory=dict)


async def take(
    measure: Measure,
    postgres: Postgres,
    *,
    seed: int,
    sizes: dict[str, int],
    keep: Path | None = None,
) -> Measured:
    """Take a measure in a world of its own, and ask everything else of that world too."""
    begun = time.monotonic()
    async with world(
        postgres,
        seed=seed,
        replicas=measure.replicas,
        ttl=measure.ttl,
        load=Load(slots=6, interrupted=0),
        **measure.environment,
    ) as made:
        values = await measure.take(made, sizes)
        await settle(made, measure.ttl)
        found: Found = await check(
            made.database,
            made.history,
            ttl=measure.ttl,
            readers=made.generator.readers,
            folder=made.folder,
            urls=[replica.url for replica in made.replicas if not replica.ended.done()],
        )
        found.violations += made.model.violations
        found.excuse()
        if keep is not None and (found.violations or found.known):
            shutil.copytree(made.folder, keep / f"{measure.name}-{seed}", dirs_exist_ok=True)
        seconds = time.monotonic() - begun
        return Measured(measure.name, seed, values, found.violations, found.known, seconds)


async def storm(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Let readers come and go at random places, through proxies that buffer what they pass on."""
    async with AsyncExitStack() as stack:
        fronts = []
        for replica in made.replicas:
            connect = partial(asyncio.open_connection, "127.0.0.1", replica.port)
            front = await stack.enter_async_context(relaying(connect))
            front.lump_bytes, front.lump_seconds = 4096, 0.03
            fronts.append(f"http://127.0.0.1:{front.port}")
        client = Client(fronts, made.history, made.scene.chance)
        stack.push_async_callback(client.close)
        sessions = [await made.generator.session() for _ in range(sizes["sessions"])]
        readers = [
            Reader(client, session, most=12, pages=0.1)
            for session in sessions
            for _ in range(sizes["readers"])
        ]
        made.generator.readers += readers
        while sum(reader.reconnects for reader in readers) < sizes["reconnects"]:
            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    group.create_task(said(made, session, Wish("", rounds=1, calls=2, chunks=5)))
            await until_idle(made.database, seconds=30)
        # They have to come to the end through the same proxies.
        last = {row.id: row.last for row in await made.database.all(_LAST, {})}
        for reader in readers:
            await reader.until(last[reader.session], seconds=20)
        return {"reconnects": sum(reader.reconnects for reader in readers), "readers": len(readers)}


_LAST = "SELECT session_id AS id, max(seq) AS last FROM events GROUP BY session_id"


async def resets(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Reset connections in the middle of the answer to a message; the replies must go on."""
    sessions = [await made.generator.session() for _ in range(20)]
    gate = asyncio.Semaphore(25)

    async def one(number: int) -> None:
        session = sessions[number % len(sessions)]
        wish = Wish(f"mr{number}", chunks=4, pause_ms=30)
        submission = made.history.sent(session, wish.text, f"key-r{number}")
        async with gate:
            await _send_and_reset(made, submission)

    async with asyncio.TaskGroup() as group:
        for number in range(sizes["resets"]):
            group.create_task(one(number))
    for reader in made.generator.readers:
        await reader.stop()
    made.generator.readers.clear()
    await made.client.close()
    deadline = time.monotonic() + HELD_SECONDS
    while (held := _connections(made.replicas)) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    if held:
        made.history.violation(f"{held} connections are held 2 s after they were reset")
    known = sum(each.accepted for each in made.history.submissions)
    return {"resets": sizes["resets"], "known to be accepted": known}


async def _send_and_reset(made: World, submission: Submission) -> None:
    replica = made.scene.chance.choice(made.replicas)
    body = b'{"content":"%b"}' % submission.text.encode()
    head = (
        f"POST /v1/sessions/{submission.session}/messages HTTP/1.1\r\nHost: x\r\n"
        f"Accept: text/event-stream\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {submission.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    writer.write(head.encode() + body)
    seen = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            wanted = made.scene.chance.randrange(-500, 1500)
            while len(seen) < wanted and (data := await reader.read(256)):
                seen += data
    if found := re.search(rb"location: \S+/(rep_\w+)", seen, re.IGNORECASE):
        submission.replies.add(found[1].decode())
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LOST)
    writer.transport.abort()


async def idle_streams(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Hold many streams open at a replica with a small pool, and see how quick other routes are."""
    sessions = [await made.generator.session() for _ in range(10)]
    for reader in made.generator.readers:
        await reader.stop()
    made.generator.readers.clear()
    async with AsyncExitStack() as stack:
        for number in range(sizes["streams"]):
            path = f"/v1/sessions/{sessions[number % 10]}/events"
            await stack.enter_async_context(made.client.stream("GET", path))
        gate = asyncio.Semaphore(4)
        times: dict[str, list[float]] = {}

        async def one(number: int) -> None:
            name, method, path, body = (
                ("snapshot", "GET", f"/v1/sessions/{sessions[number % 10]}", None),
                ("list", "GET", "/v1/sessions?limit=20", None),
                ("agent", "POST", "/v1/agents", {"name": "A"}),
                ("ready", "GET", "/readyz", None),
            )[number % 4]
            async with gate:
                begun = time.monotonic()
                answer = await made.client.ask(method, path, body)
                times.setdefault(name, []).append(time.monotonic() - begun)
            if answer is None or answer.status not in {200, 201}:
                made.history.violation(f"{method} {path} was answered {answer}")

        await asyncio.gather(*[one(number) for number in range(sizes["requests"])])
    slowest = max(p99(each) for each in times.values())
    if slowest > QUICK_SECONDS:
        made.history.violation(f"with idle streams, p99 is {slowest:.3f} s")
    return {
        "streams": sizes["streams"],
        **{f"{name} p99 ms": round(p99(each) * 1000) for name, each in times.items()},
    }


async def deaf_readers(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Let readers take nothing of a long log, and see what that costs; then they come back."""
    (replica,) = made.replicas
    session = await made.generator.session()
    await made.generator.readers.pop().stop()
    while await _log_bytes(made, session) < sizes["megabytes"] * 1_000_000:
        await said(made, session, Wish("", chunks=40, pause_ms=5, pad=25_000))
    total = await _log_bytes(made, session)
    before, own = _rss_mb(replica), _connections(made.replicas)
    most = before
    opened = [await _open_deaf(replica, session) for _ in range(sizes["readers"])]
    deadline = time.monotonic() + sizes["seconds"]
    while time.monotonic() < deadline:
        most = max(most, _rss_mb(replica))
        await asyncio.sleep(0.1)
    left = max(0, _connections(made.replicas) - own)
    for each in opened:
        each.close()
    if left and sizes["seconds"] > LET_GO_SECONDS:
        made.history.violation(f"15: readers that were let go hold {left} connections")
    if most - before > MOST_GROWTH_MB:
        made.history.violation(
            f"15: memory grew by {most - before:.0f} MB for readers that do not read"
        )
    gate = asyncio.Semaphore(5)

    async def back() -> str:
        async with gate:
            return await _digest(made.client, session)

    digests = set(await asyncio.gather(*[back() for _ in range(sizes["readers"])]))
    if len(digests) != 1:
        made.history.violation("4: readers that came back did not all get the same")
    return {
        "readers": sizes["readers"],
        "log MB": round(total / 1e6),
        "RSS before MB": round(before),
        "RSS grew MB": round(most - before),
        f"connections left after {sizes['seconds']} s": left,
    }


async def _open_deaf(replica: Replica, session: str) -> socket.socket:
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(deaf, ("127.0.0.1", replica.port))
    asked = f"GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: x\r\n\r\n"
    await loop.sock_sendall(deaf, asked.encode())
    return deaf


async def _digest(client: Client, session: str) -> str:
    """Read a whole log, and return what it comes to."""
    seen = hashlib.sha256()
    path = f"/v1/sessions/{session}/events?follow=false"
    async with client.stream("GET", path) as answer:
        async for data in answer.content.iter_any():
            seen.update(data)
    return seen.hexdigest()


_LOG_BYTES = """
SELECT coalesce(sum(length(data::text)), 0)::bigint AS size FROM events WHERE session_id = :id
"""


async def _log_bytes(made: World, session: str) -> int:
    row = await made.database.first(
        _LOG_BYTES,
        {"id": session},
    )
    return row.size if row is not None else 0


async def one_key(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Send one message with one key from many clients to all replicas at once."""
    replies: set[str] = set()
    for number in range(sizes["rounds"]):
        session = await made.generator.session()
        submission = made.history.sent(session, Wish(f"mk{number}").text, f"one-{number}")

        async def one(submission: Submission = submission) -> None:
            while True:
                path = f"/v1/sessions/{submission.session}/messages"
                answer = await made.client.ask(
                    "POST", path, {"content": submission.text}, Idempotency_Key=submission.key or ""
                )
                if answer is not None and answer.status == 202:
                    submission.replies.add(answer.body["reply_id"])
                    return
                assert answer is None or answer.status == 409, answer
                await asyncio.sleep(0.05)

        await asyncio.gather(*[one() for _ in range(sizes["clients"])])
        replies |= submission.replies
    if len(replies) != sizes["rounds"]:
        made.history.violation(f"7: {sizes['rounds']} keys made {len(replies)} replies")
    return {"keys": sizes["rounds"], "clients": sizes["clients"], "replies": len(replies)}


async def double_texts(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Send to one session from clients of every replica, each before the others are answered."""
    values: dict[str, Any] = {"clients": sizes["clients"]}
    for policy in POLICIES:
        session = await made.generator.session()
        left = iter(range(sizes["messages"]))
        begun = len(made.history.submissions)

        async def one(
            url: str, session: str = session, policy: str = policy, left: Iterator[int] = left
        ) -> None:
            for number in left:
                await _double_text(made, session, f"m{policy}{number}", policy, url)

        async with asyncio.TaskGroup() as group:
            for at in range(sizes["clients"]):
                group.create_task(one(made.replicas[at % len(made.replicas)].url))
        await until_idle(made.database, seconds=30)
        values[policy] = await _kept(made, session, made.history.submissions[begun:])
    return values


POLICIES = ("enqueue", "reject", "interrupt", "rollback", "steer")


async def _double_text(made: World, session: str, name: str, policy: str, url: str) -> None:
    """Send a message and wait for its answer, or until it is refused; with a key, so never twice."""
    chance = made.scene.chance
    wish = Wish(name, rounds=chance.randint(0, 1), chunks=2, pause_ms=chance.randint(0, 10))
    submission = made.history.sent(session, wish.text, f"key-{name}")
    submission.on_busy = policy
    while True:
        submission.tries += 1
        answer = await made.client.ask(
            "POST",
            f"/v1/sessions/{session}/messages",
            {"content": wish.text, "on_busy": policy},
            url=url,
            Idempotency_Key=f"key-{name}",
            Prefer="wait=7",
        )
        if answer is not None and answer.status in {200, 202}:
            submission.replies.add(answer.body["reply_id" if answer.status == 202 else "id"])
            return
        if answer is not None and answer.status == 409 and policy == "reject":
            submission.refused = True
            return
        if answer is not None:
            made.history.violation(f"7: {submission} was answered {answer}")
            return


async def _kept(made: World, session: str, sent: list[Submission]) -> str:
    """Ask that no update is lost: each accepted message is in the conversation, and once."""
    state, _ = await PostgresSessions(made.database).state(TENANT, session)
    said = Counter(
        block.text
        for message in state.context
        if message.role == "user"
        for block in message.content
        if block.type == "text"
    )
    for each in sent:
        if said[each.text] != each.accepted:
            made.history.violation(f"5: {each} is {said[each.text]} times in the conversation")
    replies = await made.database.all(_ENDED, {"id": session})
    ended = ", ".join(f"{row.count:,} {row.reason}" for row in replies)
    return f"{sum(each.accepted for each in sent):,} of {len(sent):,} accepted ({ended})"


_ENDED = """
SELECT finished_reason AS reason, count(*) AS count FROM replies WHERE session_id = :id
GROUP BY finished_reason ORDER BY finished_reason
"""


async def told_to_stop(made: World, sizes: dict[str, int]) -> dict[str, Any]:
    """Tell a replica to stop with streams open and replies under way; others go on at once."""
    leaving = made.replicas[0]
    sessions = [await made.generator.session() for _ in range(sizes["replies"])]
    for number, session in enumerate(sessions):
        wish = Wish(f"mt{number}", chunks=80, pause_ms=100)
        await _send_to(made, leaving, made.history.sent(session, wish.text, f"key-t{number}"))
    async with AsyncExitStack() as stack:
        streams = []
        for number in range(sizes["streams"]):
            path = f"/v1/sessions/{sessions[number % len(sessions)]}/events"
            stream = made.client.stream("GET", path, url=leaving.url)
            streams.append(await stack.enter_async_context(stream))
        while made.model.counts["requests"] < len(sessions):
            await asyncio.sleep(0.05)
        await made.scene.bereave("terminate", leaving)
        begun, at = time.monotonic(), time.time()
        leaving.signal(signal.SIGTERM)
        ends = asyncio.gather(*[_to_the_end(stream) for stream in streams])
        code = await leaving.ended
        seconds = time.monotonic() - begun
        await ends
    held = len(made.history.bereaved)
    if code != 0 or seconds > GRACE_SECONDS + 2:
        made.history.violation(f"14: it ended with {code} after {seconds:.1f} s")
    await until_idle(made.database, seconds=40)
    rows = await made.database.all(_WENT_ON, {"since": at})
    late = max((row.at - at - seconds for row in rows), default=0.0)
    if late > 3:
        made.history.violation(f"14: a reply went on {late:.1f} s after its replica had ended")
    return {
        "streams": sizes["streams"],
        "replies held": held,
        "ended after s": round(seconds, 1),
        "exit code": code,
        "went on within s": round(late, 2),
    }


_WENT_ON = """
SELECT reply_id, extract(epoch FROM min(at))::float8 AS at FROM events
WHERE type = 'REPLY_RESUMED' AND at > to_timestamp(:since) GROUP BY reply_id
"""


async def _to_the_end(stream: Any) -> None:
    async for _ in stream.content.iter_any():
        pass


async def _send_to(made: World, replica: Replica, submission: Submission) -> None:
    path = f"/v1/sessions/{submission.session}/messages"
    answer = await made.client.ask("POST", path, {"content": submission.text}, url=replica.url)
    assert answer is not None, "the replica does not answer"
    submission.replies.add(answer.body["reply_id"])


async def said(made: World, session: str, wish: Wish) -> None:
    """Send a message, and wait for its answer."""
    number = len(made.history.submissions)
    named = Wish(f"ms{number}", wish.rounds, wish.calls, wish.chunks, wish.pause_ms, wish.pad)
    submission = made.history.sent(session, named.text, f"key-s{number}")
    path = f"/v1/sessions/{session}/messages"
    answer = await made.client.insist(
        "POST", path, {"content": named.text}, Idempotency_Key=f"key-s{number}", Prefer="wait=7"
    )
    submission.replies.add(answer.body["reply_id" if answer.status == 202 else "id"])


def _connections(replicas: list[Replica]) -> int:
    """Return how many connections to replicas are open, or closed by their clients alone."""
    ports = {replica.port for replica in replicas}
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port = int(fields[1].partition(":")[2], 16)
        count += port in ports and fields[3] in {"01", "08"}
    return count


def _rss_mb(replica: Replica) -> float:
    text = Path(f"/proc/{replica.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


MEASURES = {
    each.name: each
    for each in (
        Measure(
            "storm",
            storm,
            {"sessions": 3, "readers": 4, "reconnects": 150},
            {"sessions": 8, "readers": 5, "reconnects": 2_000},
        ),
        Measure("resets", resets, {"resets": 60}, {"resets": 500}),
        Measure(
            "idle-streams",
            idle_streams,
            {"streams": 200, "requests": 200},
            {"streams": 200, "requests": 2_000},
            replicas=1,
            environment={"BEARINGS_DATABASE_POOL": "5"},
        ),
        Measure(
            "deaf-readers",
            deaf_readers,
            {"readers": 20, "megabytes": 5, "seconds": 2},
            {"readers": 100, "megabytes": 50, "seconds": 45},
            replicas=1,
            ttl=20,
        ),
        Measure("one-key", one_key, {"clients": 50, "rounds": 1}, {"clients": 50, "rounds": 20}),
        Measure(
            "double-texts",
            double_texts,
            {"clients": 8, "messages": 40},
            {"clients": 16, "messages": 1_000},
            replicas=2,
        ),
        Measure(
            "told-to-stop",
            told_to_stop,
            {"streams": 50, "replies": 10},
            {"streams": 50, "replies": 10},
            replicas=2,
            ttl=60,
        ),
    )
}
