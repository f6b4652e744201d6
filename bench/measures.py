"""The measurements: each a function that returns rows, all in turns so that noise hits all alike."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

import aiohttp
import asyncpg

from bench.client import Reply, reply, text
from bench.processes import cpu_seconds, resident_mib
from bench.report import Goal, Row
from bench.targets import Bearings, Target

TOKENS = 2000
IN_ONE_SESSION = 20
"""Replies after which a client goes on in another session: growth is measured by itself."""
OPEN_STREAMS = 500
HELD = (0, 10, 100, 1_000, 5_000)
WINDOW = 50
"""What `proxy2` sends to the model, however much is held."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where it is measured, and how much."""

    client: aiohttp.ClientSession
    model_url: str
    folder: Path
    postgres_url: str
    postgres_pid: int
    targets: Mapping[str, Target]
    """Running, on one Postgres with a database each."""
    alone: Mapping[str, Target]
    """The same, not running, with other databases: nobody else works there when one is started."""
    rounds: int = 5
    starts: int = 3
    share: float = 1.0
    """Of the replies of the full form."""

    def some(self, count: int, *, least: int = 1) -> int:
        return max(int(count * self.share), least)


@dataclass(frozen=True)
class Round:
    """What a number of replies took, from one target, without a pause."""

    replies: Sequence[Reply]
    wall: float
    cpu: float
    postgres_cpu: float

    def at(self, share: float) -> float:
        """Return the time of a reply in ms that this share of all did not exceed."""
        ordered = sorted(each.end for each in self.replies)
        return 1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu / len(self.replies)

    @property
    def postgres_cpu_ms(self) -> float:
        return 1000 * self.postgres_cpu / len(self.replies)

    @property
    def per_second(self) -> float:
        return len(self.replies) / self.wall

    @property
    def events_per_second(self) -> float:
        return sum(each.events for each in self.replies) / self.wall

    @property
    def first_event_ms(self) -> float:
        return 1000 * median(each.first_event for each in self.replies)

    @property
    def first_token_ms(self) -> float:
        return 1000 * median(each.first_token for each in self.replies)


async def talk(
    setting: Setting, target: Target, clients: Sequence[Sequence[str]], count: int
) -> Round:
    """Take replies: one at a time from each client, who goes through sessions of their own."""
    taken: list[Reply] = []

    async def one(addresses: Sequence[str]) -> None:
        left = count // len(clients)
        while left > 0:
            left -= 1
            taken.append(await reply(setting.client, addresses[left // IN_ONE_SESSION]))

    cpu, postgres = cpu_seconds(target.pid), cpu_seconds(setting.postgres_pid)
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for addresses in clients:
            group.create_task(one(addresses))
    return Round(
        taken,
        time.perf_counter() - begun,
        cpu_seconds(target.pid) - cpu,
        cpu_seconds(setting.postgres_pid) - postgres,
    )


async def begin(target: Target, *, model: str, clients: int, count: int) -> list[list[str]]:
    """Begin the sessions that clients go through for so many replies."""
    each = ceil(count / clients / IN_ONE_SESSION)
    return [[await target.session(model) for _ in range(each)] for _ in range(clients)]


async def turns(
    setting: Setting, *, model: str, clients: int, count: int
) -> dict[str, list[Round]]:
    """Measure all targets in turns, each round beginning with another one, in new sessions."""
    targets = list(setting.targets.values())
    taken: dict[str, list[Round]] = {target.name: [] for target in targets}
    for target in targets:
        some = max(clients, 10)
        addresses = await begin(target, model=model, clients=clients, count=some)
        await talk(setting, target, addresses, some)
    for at in range(setting.rounds):
        first = at % len(targets)
        for target in targets[first:] + targets[:first]:
            addresses = await begin(target, model=model, clients=clients, count=count)
            taken[target.name].append(await talk(setting, target, addresses, count))
    return taken


Quantity = Callable[[Round], float]


def row(
    what: str,
    unit: str,
    taken: Mapping[str, Sequence[Round]],
    quantity: Quantity,
    goal: Goal | None = None,
    *,
    watched: str | None = None,
) -> Row:
    rounds = {name: [quantity(each) for each in of_it] for name, of_it in taken.items()}
    return Row(what, unit, rounds, goal, watched)


def cpu_ms(each: Round) -> float:
    return each.cpu_ms


async def single(setting: Setting) -> list[Row]:
    """Measure one client and a reply of one chunk."""
    taken = await turns(setting, model="text-1", clients=1, count=setting.some(150))
    return [
        row("reply p50, 1 client", "ms", taken, lambda each: each.at(0.5), Goal(2, "proxy2")),
        row("reply p95, 1 client", "ms", taken, lambda each: each.at(0.95)),
        row("first event p50", "ms", taken, lambda each: each.first_event_ms),
        row("first token p50", "ms", taken, lambda each: each.first_token_ms, Goal(2, "proxy2")),
        row("service CPU a reply", "ms", taken, cpu_ms, Goal(2.5, "proxy2"), watched="proxy2"),
        row("Postgres CPU a reply", "ms", _kept(taken), lambda each: each.postgres_cpu_ms),
    ]


async def many(setting: Setting, sessions: int) -> list[Row]:
    """Measure sessions that talk at once, with replies of one chunk."""
    taken = await turns(setting, model="text-1", clients=sessions, count=setting.some(960))
    at = f"{sessions} sessions"
    steady = Goal(3) if sessions == 64 else None
    fast = Goal(0.35, "proxy2", least=True)
    return [
        row(f"replies/s, {at}", "1/s", taken, lambda each: each.per_second, fast),
        row(f"reply p50, {at}", "ms", taken, lambda each: each.at(0.5)),
        row(f"reply p95, {at}", "ms", taken, lambda each: each.at(0.95)),
        row(f"p95 ÷ p50, {at}", "x", taken, lambda each: each.at(0.95) / each.at(0.5), steady),
        row(f"service CPU a reply, {at}", "ms", taken, cpu_ms, watched="proxy2"),
        row(f"Postgres CPU a reply, {at}", "ms", _kept(taken), lambda each: each.postgres_cpu_ms),
    ]


async def tokens(setting: Setting, sessions: int) -> list[Row]:
    """Measure replies of 2,000 chunks; every target must tell every word of them."""
    model = f"text-{TOKENS}"
    lengths = {
        name: len(await text(setting.client, await target.session(model)))
        for name, target in setting.targets.items()
    }
    assert len({*lengths.values()}) == 1, f"some text is missing: {lengths}"
    count = setting.some(8 if sessions == 1 else 2 * sessions, least=max(sessions, 3))
    taken = await turns(setting, model=model, clients=sessions, count=count)
    at, fast = f"{sessions} at once", Goal(0.4, "proxy", least=True)
    return [
        row(f"tokens/s, {at}", "1/s", taken, lambda each: TOKENS * each.per_second, fast),
        row(f"events/s, {at}", "1/s", taken, lambda each: each.events_per_second),
        row(
            f"service CPU a token, {at}",
            "us",
            taken,
            lambda each: 1000 * each.cpu_ms / TOKENS,
            watched="proxy",
        ),
    ]


async def growth(setting: Setting) -> list[Row]:
    """Measure replies in sessions that hold messages already, against an empty one.

    The service has them in its agent's context, for nothing is compressed; in the last session it has
    the last fifty there, as `proxy2` does always, and the others in its history.
    """
    targets = [setting.targets["bearings"], setting.targets["proxy2"]]
    count = setting.some(20, least=8)
    sessions = [*[(held, held) for held in HELD], (HELD[-1], WINDOW)]
    p50: dict[str, list[list[float]]] = {}
    addresses = {
        target.name: [
            await target.session("text-1", held=held, window=window) for held, window in sessions
        ]
        for target in targets
    }
    for target in targets:
        p50[target.name] = [[] for _ in sessions]
        for address in addresses[target.name]:
            await talk(setting, target, [[address]], 3)
    for _ in range(setting.rounds):
        for target in targets:
            for at, address in enumerate(addresses[target.name]):
                taken = await talk(setting, target, [[address]], count)
                p50[target.name][at].append(taken.at(0.5))
    names = [f"{held:,} held" for held in HELD] + [f"{HELD[-1]:,} held, {WINDOW} in the window"]
    rows = [
        Row(f"reply p50, {name}", "ms", {each: found[at] for each, found in p50.items()})
        for at, name in enumerate(names)
    ]
    for at, name in enumerate(names[1:], start=1):
        ratios = {
            each: [grown / empty for grown, empty in zip(found[at], found[0], strict=True)]
            for each, found in p50.items()
        }
        goal = Goal(1.2) if sessions[at][1] == WINDOW else None
        rows.append(Row(f"{name} ÷ none", "x", ratios, goal))
    return rows


async def tools(setting: Setting) -> list[Row]:
    """Measure replies with three rounds of a tool call before the text: four model calls."""
    target = setting.targets["bearings"]
    rounds: list[float] = []
    for _ in range(setting.rounds):
        addresses = [await target.session("tools-3x1,text-1") for _ in range(setting.some(20))]
        ends = [(await reply(setting.client, address)).end for address in addresses]
        rounds.append(1000 * median(ends))
    return [Row("reply p50, 3 tool calls in a row", "ms", {"bearings": rounds})]


async def transactions(setting: Setting) -> list[Row]:
    """Count a reply's transactions by the database's own account.

    A backend settles its account at the latest when it ends: a fresh process is started and stopped
    without replies and with some, and the difference is theirs.
    """
    count = setting.some(200, least=60)
    made: dict[str, list[float]] = {"bearings": [], "proxy2": []}
    connection = await asyncpg.connect(setting.postgres_url)
    try:
        for _ in range(setting.starts):
            for name, rounds in made.items():
                fresh, database = setting.alone[name], f"bench_alone_{name}"
                before = await _settled(connection, database)
                took = await _visit(setting, fresh, replies=count)
                between = await _settled(connection, database)
                await _visit(setting, fresh, pause=took)
                after = await _settled(connection, database)
                rounds.append(((between - before) - (after - between)) / count)
    finally:
        await connection.close()
    return [Row("Postgres transactions a reply", "", made, Goal(5))]


async def _visit(setting: Setting, target: Target, *, replies: int = 0, pause: float = 0) -> float:
    """Start a target for some replies or for a pause, and return how long these took."""
    async with target.running():
        addresses = await begin(target, model="text-1", clients=1, count=200)
        begun = time.perf_counter()
        await talk(setting, target, addresses, replies)
        await asyncio.sleep(pause)
        return time.perf_counter() - begun


async def _settled(connection: "asyncpg.Connection[asyncpg.Record]", database: str) -> int:
    """Return how many transactions a database made, once its account stands still."""
    asked = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1"
    seen = -1
    while True:
        made = int(await connection.fetchval(asked, database))
        if made == seen:
            return made
        seen = made
        await asyncio.sleep(0.5)


async def start(setting: Setting) -> list[Row]:
    """Measure cold starts on a warm Postgres, idle memory, and what open streams take."""
    names = ("bearings", "proxy", "proxy2")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    idle: dict[str, list[float]] = {name: [] for name in names}
    streams: dict[str, list[float]] = {name: [] for name in names}
    async with setting.alone["bearings"].running():
        pass  # The first start makes the tables.
    for at in range(setting.starts):
        for name in names:
            fresh = setting.alone[name]
            async with fresh.running() as started:
                await asyncio.sleep(1)
                seconds[name].append(started.start_seconds)
                idle[name].append(resident_mib(started.pid))
                if at == 0:
                    streams[name].append(await _streams_mib(setting, fresh))
    return [
        Row("start to /readyz, Postgres there", "s", seconds, Goal(2, "proxy")),
        Row("RSS idle", "MiB", idle, Goal(1.4, "proxy")),
        Row("RSS for 1,000 open streams", "MiB", streams, Goal(2, "proxy")),
    ]


async def _streams_mib(setting: Setting, target: Target) -> float:
    """Open streams of quiet sessions and return what they add to a process, for 1,000 of them."""
    addresses = [await target.session("text-1") for _ in range(10)]
    for address in addresses:
        await reply(setting.client, address)
    before = resident_mib(target.pid)
    async with AsyncExitStack() as stack:
        for at in range(OPEN_STREAMS):
            stream = setting.client.get(f"{addresses[at % 10]}/events")
            answer = await stack.enter_async_context(stream)
            assert answer.status == 200
            await answer.content.readany()
        after = resident_mib(target.pid)
    return (after - before) * 1000 / OPEN_STREAMS


async def own_postgres(setting: Setting) -> list[Row]:
    """Measure a start with a Postgres of its own, as `make run` makes it, in a folder used before.

    There the scripted model's first event is taken, too.
    """
    target = Bearings(
        name="bearings",
        client=setting.client,
        model_url=setting.model_url,
        data_dir=str(setting.folder / "own"),
        model="scripted:demo",
    )
    seconds: list[float] = []
    first: list[float] = []
    async with target.running():
        pass
    for _ in range(setting.starts):
        async with target.running() as started:
            seconds.append(started.start_seconds)
            address = await target.session("scripted:demo")
            await reply(setting.client, address)
            taken = [await reply(setting.client, address) for _ in range(setting.some(20, least=5))]
            first.append(1000 * median(each.first_event for each in taken))
    return [
        Row("start to /readyz, own Postgres, warm folder", "s", {"bearings": seconds}, Goal(5)),
        Row("first event, scripted:demo", "ms", {"bearings": first}, Goal(50)),
    ]


def _kept(taken: Mapping[str, Sequence[Round]]) -> dict[str, Sequence[Round]]:
    return {name: rounds for name, rounds in taken.items() if name != "proxy"}


Measure = Callable[[Setting], Awaitable[list[Row]]]

MEASURES: dict[str, Measure] = {
    "single": single,
    "many-16": lambda setting: many(setting, 16),
    "many-64": lambda setting: many(setting, 64),
    "tokens-1": lambda setting: tokens(setting, 1),
    "tokens-16": lambda setting: tokens(setting, 16),
    "growth": growth,
    "tools": tools,
    "transactions": transactions,
    "start": start,
    "own-postgres": own_postgres,
}
"""By the name that `--only` takes, in the order in which they are made."""
