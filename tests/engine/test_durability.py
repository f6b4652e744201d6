"""What went wrong once, or nearly: readers, holders and failures, played on a real database."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from app.adapters.postgres.database import Database
from app.adapters.postgres.leases import PostgresLeases
from app.core.errors import NotSent, Unavailable
from app.core.messages import TextBlock, Usage
from app.engine.replies import Said
from app.engine.worker import Worker
from app.ports.leases import Appended, Batch, Lease
from app.ports.models import Finished, Piece, Prompt, TextPiece
from tests.support.checker import violations
from tests.support.models import USAGE, WrittenModel, call, say
from tests.support.replica import TENANT, Replica
from tests.support.tools import Hang, WrittenTool

NOW = timedelta(0)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def until_idle(replica: Replica, session: str) -> None:
    async with asyncio.timeout(30):
        while (await replica.sessions.get(TENANT, session)).status != "idle":
            await asyncio.sleep(0.02)


@pytest.fixture
async def here(own_database: Database) -> Replica:
    return Replica(own_database)


@pytest.fixture
async def there(own_url: str) -> AsyncGenerator[Replica, None]:
    database = Database(own_url, pool_size=5)
    yield Replica(database)
    await database.close()


async def read(replica: Replica, session: str, seen: list[int]) -> None:
    async for entries in replica.logs.tail(session, after=0):
        seen += [entry.seq for entry in entries]


async def written(replica: Replica, session: str, worker: Worker) -> int:
    """Let a worker write what waits, and return the number of the last event."""
    await worker.start()
    await until_idle(replica, session)
    await worker.stop(NOW)
    return (await replica.sessions.get(TENANT, session)).last_seq


async def test_a_second_reader_sees_what_another_replica_wrote_while_the_first_was_up_to_date(
    here: Replica, there: Replica
) -> None:
    polling = asyncio.create_task(here.wakeups.poll())
    session = await here.session()
    first: list[int] = []
    second: list[int] = []
    one = asyncio.create_task(read(here, session, first))
    await here.send(session)
    end = await written(there, session, there.worker(WrittenModel([say("hello")])))
    await until(lambda: len(first) == end)
    two = asyncio.create_task(read(here, session, second))
    await until(lambda: len(second) == end)
    for task in (one, two, polling):
        task.cancel()
    await asyncio.gather(one, two, polling, return_exceptions=True)

    assert first == second == list(range(1, end + 1))


async def test_a_slow_reader_misses_nothing_that_came_while_it_was_busy(
    here: Replica, there: Replica
) -> None:
    """Every wake-up, and the poll, come and go while it takes its time with the first event."""
    session = await here.session()
    tail = here.logs.tail(session, after=0)
    await here.send(session)
    seen = [entry.seq for entry in await anext(tail)]
    end = await written(there, session, there.worker(WrittenModel([say("hello")])))
    here.wakeups.heard("grown", session)
    await here.wakeups._look()
    async with asyncio.timeout(10):
        while seen[-1] < end:
            seen += [entry.seq for entry in await anext(tail)]
    await tail.aclose()

    assert seen == list(range(1, end + 1))


async def test_a_dead_holders_session_is_found_however_busy_the_others_are(here: Replica) -> None:
    session = await here.session()
    await here.send(session)
    claim = await here.leases.claim(owner="dead", ttl=timedelta(seconds=2), session_id=session)
    worker = here.worker(WrittenModel([say("hello")]))
    await worker.start()

    async def chatter() -> None:
        while True:
            here.wakeups.heard("work", "ses_of_somebody_else")
            await asyncio.sleep(0.1)

    chatting = asyncio.create_task(chatter())
    await until_idle(here, session)
    chatting.cancel()
    await asyncio.gather(chatting, return_exceptions=True)
    await worker.stop(NOW)

    assert claim is not None
    assert await violations(here.database, session) == []


class CancelsItself(WrittenTool):
    async def run(self, call: Any) -> AsyncGenerator[Any, None]:
        self.calls.append(call)
        raise asyncio.CancelledError
        yield


async def test_a_cancellation_from_within_a_tool_is_a_failed_call(here: Replica) -> None:
    tool = CancelsItself("Odd")
    session = await here.session()
    await here.send(session)
    await written(
        here, session, here.worker(WrittenModel([call(("c", "Odd", "{}")), say("ok")]), tool)
    )

    assert len(tool.calls) == 1
    assert await violations(here.database, session) == []


class CancelledModel(WrittenModel):
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        self.prompts.append(prompt)
        raise asyncio.CancelledError
        yield


async def test_a_cancellation_from_within_a_model_is_a_failed_reply(here: Replica) -> None:
    model = CancelledModel([])
    session = await here.session()
    accepted = await here.send(session)
    await written(here, session, here.worker(model))
    reply = await here.store.get(TENANT, session, accepted.reply_id)

    assert len(model.prompts) == 1
    assert (reply.finished_reason, reply.error and reply.error.code) == ("error", "model_cancelled")
    assert await violations(here.database, session) == []


class Breaking(PostgresLeases):
    """Breaks writes in the way that a test says."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.breaks: list[Exception] = []
        self.stuck = asyncio.Event()

    async def append(self, lease: Lease, batch: Batch, *, ttl: timedelta) -> Appended:
        if self.breaks:
            error = self.breaks.pop(0)
            if isinstance(error, TimeoutError):
                self.stuck.set()
                await asyncio.Event().wait()
            raise error
        return await super().append(lease, batch, ttl=ttl)


async def test_losing_the_session_ends_the_step_that_is_under_way(here: Replica) -> None:
    """Nobody else takes it here: the same process goes on with it, and two never act at once."""
    leases = Breaking(here.database)
    here.leases = leases
    slow = Hang("Slow")
    session = await here.session()
    await here.send(session)
    turns = [call(("c", "Slow", "{}")), say("ok")]
    worker = here.worker(WrittenModel(turns), slow, ttl=2)
    await worker.start()
    await asyncio.wait_for(slow.begun.wait(), 10)
    leases.breaks = [TimeoutError()]
    await until_idle(here, session)
    held = dict(worker._held)
    await worker.stop(NOW)
    state, _ = await here.sessions.state(TENANT, session)
    results = [block for block in state.context[-1].content if block.type == "tool_result"]

    assert leases.stuck.is_set()
    assert [result.state for result in results] == ["interrupted"]
    assert (len(slow.calls), held) == (1, {})
    assert await violations(here.database, session) == []


async def test_a_write_of_which_nothing_was_sent_is_tried_again(here: Replica) -> None:
    leases = Breaking(here.database)
    leases.breaks = [NotSent(), NotSent()]
    here.leases = leases
    model = WrittenModel([say("hello")])
    session = await here.session()
    await here.send(session)
    await written(here, session, here.worker(model))
    row = await here.row(session)

    assert (len(model.prompts), row.epoch) == (1, 1)
    assert await violations(here.database, session) == []


async def test_a_write_whose_answer_was_lost_is_not(here: Replica) -> None:
    leases = Breaking(here.database)
    leases.breaks = [Unavailable()]
    here.leases = leases
    session = await here.session()
    await here.send(session)
    await written(here, session, here.worker(WrittenModel([say("one"), say("two")])))

    assert (await here.row(session)).epoch == 2
    assert await violations(here.database, session) == []


async def test_a_reply_goes_on_under_the_name_that_it_began_with(here: Replica) -> None:
    slow = Hang("Slow")
    agent = await here.agent()
    session = await here.session(agent, follow=True)
    await here.send(session)
    first = here.worker(WrittenModel([call(("c", "Slow", "{}"))]), slow)
    await first.start()
    await asyncio.wait_for(slow.begun.wait(), 10)
    await first.stop(NOW)
    renamed = agent.spec.model_copy(update={"name": "Saturday"})
    await here.agents.replace(TENANT, agent.id, renamed, if_version=None)
    await written(here, session, here.worker(WrittenModel([say("ok")])))
    await here.send(session, "and on")
    await written(here, session, here.worker(WrittenModel([say("ok")])))
    state, _ = await here.sessions.state(TENANT, session)

    assert [message.name for message in state.context] == ["user", "Friday", "user", "Saturday"]
    assert await violations(here.database, session) == []


async def test_a_click_on_stop_that_comes_too_late_finds_nothing(here: Replica) -> None:
    session = await here.session()
    await here.send(session)
    first = await here.store.interrupt(TENANT, session)
    async with here.database.begin() as holder:
        await holder.first("SELECT 1 FROM sessions WHERE id = :id FOR UPDATE", {"id": session})
        late = asyncio.create_task(here.store.interrupt(TENANT, session))
        await asyncio.sleep(0.2)  # the late one waits for the lock by now; sooner is no harm
        await holder.run("UPDATE replies SET status = 'ended' WHERE id = :id", {"id": first})
        await holder.run(
            "UPDATE sessions SET queued = 0, interrupt = '' WHERE id = :id", {"id": session}
        )
    found = await late

    assert found is None
    assert (await here.row(session)).interrupt == ""


async def test_a_providers_absurd_usage_ends_no_session(here: Replica) -> None:
    absurd = Usage(input_tokens=2**63, output_tokens=2**70)
    session = await here.session()
    await here.send(session)
    await written(here, session, here.worker(WrittenModel([[TextPiece("x"), Finished(absurd)]])))

    assert (await here.sessions.get(TENANT, session)).usage.input_tokens == 2**40
    assert await violations(here.database, session) == []


class NotedPauses(PostgresLeases):
    """Notes for how long a session is left alone, and when that was said twice."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.pauses: list[timedelta] = []
        self.twice = asyncio.Event()

    async def release(self, lease: Lease, *, pause: timedelta) -> None:
        await super().release(lease, pause=pause)
        self.pauses.append(pause)
        if len(self.pauses) == 2:
            self.twice.set()


async def test_what_fails_again_and_again_is_given_time_and_ends(here: Replica) -> None:
    session = await here.session()
    accepted = await here.send(session)
    broken = Replica(here.database)
    broken.leases = noted = NotedPauses(here.database)
    worker = broken.worker(WrittenModel([]))
    worker._equip = lambda agent: (_ for _ in ()).throw(RuntimeError("no such model"))
    await worker.start()
    await asyncio.wait_for(noted.twice.wait(), 30)
    await worker.stop(timedelta(seconds=5))
    await here.database.run(
        "UPDATE sessions SET attempts = 4, lease_until = '-infinity' WHERE id = :id",
        {"id": session},
    )
    await written(here, session, here.worker(WrittenModel([])))
    reply = await here.store.get(TENANT, session, accepted.reply_id)

    assert noted.pauses[:2] == [timedelta(0), timedelta(seconds=2)]
    assert reply.error is not None
    assert reply.error.code == "crashed_repeatedly"
    assert await violations(here.database, session) == []


async def test_a_drained_session_goes_on_elsewhere_without_a_pause(
    here: Replica, there: Replica
) -> None:
    slow = Hang("Slow")
    session = await here.session()
    await here.send(session)
    first = here.worker(WrittenModel([call(("c", "Slow", "{}"))]), slow)
    await first.start()
    await asyncio.wait_for(slow.begun.wait(), 10)
    await first.stop(NOW)
    left = await here.row(session)
    await written(there, session, there.worker(WrittenModel([say("ok")])))

    assert (left.held, left.attempts) == (False, 0)
    assert await violations(here.database, session) == []


async def test_usage_is_summed_over_replies(here: Replica) -> None:
    session = await here.session()
    for _ in range(3):
        await here.send(session)
    await written(here, session, here.worker(WrittenModel([say("x")] * 3)))
    usage = (await here.sessions.get(TENANT, session)).usage

    assert (usage.input_tokens, usage.output_tokens) == (
        3 * USAGE.input_tokens,
        3 * USAGE.output_tokens,
    )


async def test_the_runtime_context_reaches_tools_and_is_gone_when_the_reply_ends(
    here: Replica,
) -> None:
    tool = WrittenTool("Echo")
    model = WrittenModel([call(("c", "Echo", "{}")), say("ok")])
    session = await here.session()
    said = Said("user", [TextBlock(text="hi")], "enqueue", {"user_id": "secret-u1"}, None)
    await here.replies.submit(TENANT, session, said, once=None)
    await written(here, session, here.worker(model, tool))
    row = await here.database.first(
        "SELECT context FROM replies WHERE session_id = :id", {"id": session}
    )

    assert tool.calls[0].context == {"user_id": "secret-u1"}
    assert "secret-u1" not in str(model.prompts)
    assert row is not None
    assert row.context is None


async def test_a_message_that_comes_while_its_session_is_being_let_go_is_taken_at_once(
    here: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No look is waited for: the hint that came too early is remembered."""
    monkeypatch.setattr("app.engine.worker.LOOK_SECONDS", 3600.0)
    session = await here.session()
    worker = here.worker(WrittenModel([say("x")] * 30))
    await worker.start()
    for number in range(30):
        accepted = await here.send(session)
        async with asyncio.timeout(20):
            async for entries in here.replies.follow(session, accepted):
                assert entries, number
    await worker.stop(NOW)

    assert await violations(here.database, session) == []
