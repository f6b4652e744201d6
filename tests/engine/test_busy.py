"""What happens to a message while a reply is being written: every policy, and the races between."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from app.adapters.postgres.database import Database
from app.adapters.tools.tasks import task_tools
from app.core.errors import SessionBusy
from app.core.state import TasksContext
from app.ports.models import Prompt
from tests.support.checker import violations
from tests.support.models import WrittenModel, call, say
from tests.support.replica import TENANT, Replica
from tests.support.tools import Hang, WrittenTool

NOW = timedelta(0)


@pytest.fixture
async def here(own_database: Database) -> Replica:
    return Replica(own_database)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def until_running(replica: Replica, session: str) -> None:
    async with asyncio.timeout(30):
        while (await replica.sessions.get(TENANT, session)).status != "running":
            await asyncio.sleep(0.01)


async def until_idle(replica: Replica, session: str) -> None:
    async with asyncio.timeout(30):
        while (await replica.sessions.get(TENANT, session)).status != "idle":
            await asyncio.sleep(0.02)


async def reasons(replica: Replica, session: str) -> dict[str, str]:
    log = await replica.log_of(session)
    return {each.reply_id: each.finished_reason for each in log if each.type == "REPLY_END"}


async def said(replica: Replica, session: str) -> list[tuple[str, str]]:
    state, _ = await replica.sessions.state(TENANT, session)
    return [(message.role, message.text) for message in state.context]


class Waits(WrittenModel):
    """Says half an answer, then waits until it is let go."""

    def __init__(self, turns: Any) -> None:
        super().__init__(turns)
        self.let_go = asyncio.Event()
        self.asked = asyncio.Event()

    async def stream(self, prompt: Prompt):
        async for piece in super().stream(prompt):
            yield piece
            self.asked.set()
            await self.let_go.wait()


async def test_reject_refuses_and_names_the_reply_that_is_written(here: Replica) -> None:
    model = Waits([say("one")])
    session = await here.session()
    worker = here.worker(model)
    await worker.start()
    first = await here.send(session)
    await asyncio.wait_for(model.asked.wait(), 10)
    with pytest.raises(SessionBusy) as refused:
        await here.send(session, on_busy="reject")
    model.let_go.set()
    await until_idle(here, session)
    await worker.stop(NOW)

    assert refused.value.reply_id == first.reply_id
    assert await violations(here.database, session) == []


async def test_interrupt_stops_the_reply_keeps_its_words_and_answers(here: Replica) -> None:
    model = WrittenModel([[*say("half an ")[:1], WrittenModel.HANG], say("two")])
    session = await here.session()
    worker = here.worker(model)
    await worker.start()
    first = await here.send(session, "first")
    await asyncio.wait_for(model.hanging.wait(), 10)
    second = await here.send(session, "second", on_busy="interrupt")
    await until_idle(here, session)
    await worker.stop(NOW)

    assert await reasons(here, session) == {
        first.reply_id: "interrupted",
        second.reply_id: "completed",
    }
    assert await said(here, session) == [
        ("user", "first"),
        ("assistant", "half an "),
        ("user", "second"),
        ("assistant", "two"),
    ]
    assert await violations(here.database, session) == []


async def test_rollback_takes_back_what_the_reply_wrote_and_planned(here: Replica) -> None:
    plan = call(("c1", "TaskCreate", '{"subject": "s", "description": "d"}'))
    model = WrittenModel([plan, [*say("half")[:1], WrittenModel.HANG], say("two")])
    session = await here.session()
    worker = here.worker(model, *task_tools())
    await worker.start()
    first = await here.send(session, "first")
    await asyncio.wait_for(model.hanging.wait(), 10)
    planned = (await here.sessions.state(TENANT, session))[0].tasks_context
    await here.send(session, "second", on_busy="rollback")
    await until_idle(here, session)
    await worker.stop(NOW)
    state, _ = await here.sessions.state(TENANT, session)
    log = await here.log_of(session)
    taken_back = next(each for each in log if each.type == "REPLY_RESUMED")
    before = log[: log.index(taken_back)]
    begun = {each.block_id for each in before if each.type == "TEXT_BLOCK_START"} | {"c1"}

    assert len(planned.tasks) == 1
    assert state.tasks_context == TasksContext()
    assert await said(here, session) == [
        ("user", "first"),
        ("user", "second"),
        ("assistant", "two"),
    ]
    assert (await reasons(here, session))[first.reply_id] == "interrupted"
    assert taken_back.reason == "rolled_back"
    assert begun <= set(taken_back.discard)
    reply = await here.store.get(TENANT, session, first.reply_id)
    assert reply.usage.input_tokens == 10
    assert await violations(here.database, session) == []


async def test_a_rollback_in_a_session_that_goes_on_leaves_no_row_behind(here: Replica) -> None:
    tool = WrittenTool("Echo")
    turns = [
        say("zero"),
        call(("c1", "Echo", "{}")),
        call(("c2", "Echo", "{}")),
        [*say("half")[:1], WrittenModel.HANG],
        say("two"),
    ]
    model = WrittenModel(turns)
    session = await here.session()
    worker = here.worker(model, tool)
    await worker.start()
    await here.send(session, "zero")
    await until_idle(here, session)
    await here.send(session, "first")
    await asyncio.wait_for(model.hanging.wait(), 10)
    await here.send(session, "second", on_busy="rollback")
    await until_idle(here, session)
    await worker.stop(NOW)
    rows = await here.database.all(
        "SELECT m.pos, count(b.idx) AS blocks FROM messages m "
        "LEFT JOIN blocks b ON b.session_id = m.session_id AND b.pos = m.pos "
        "WHERE m.session_id = :id GROUP BY m.pos ORDER BY m.pos",
        {"id": session},
    )
    stray = await here.database.one(
        "SELECT count(*) AS n FROM blocks WHERE session_id = :id AND pos > 4", {"id": session}
    )

    # The time was told before the first answer, and is told anew behind what was taken back.
    assert [(row.pos, row.blocks) for row in rows] == [(0, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
    assert stray.n == 0
    assert await violations(here.database, session) == []


async def test_steer_joins_the_reply_before_its_next_reasoning_step(here: Replica) -> None:
    slow = Hang("Slow")
    model = WrittenModel([call(("c1", "Slow", "{}")), say("both")])
    session = await here.session()
    worker = here.worker(model, slow)
    await worker.start()
    first = await here.send(session, "first")
    await asyncio.wait_for(slow.begun.wait(), 10)
    joined = await here.send(session, "rather this", on_busy="steer")
    slow.let_go.set()
    await until_idle(here, session)
    await worker.stop(NOW)
    asked = [message.text for message in model.prompts[1].context]

    assert joined.reply_id == first.reply_id
    assert joined.status == "running"
    assert asked == ["first", "", "rather this"]
    assert await said(here, session) == [
        ("user", "first"),
        ("assistant", ""),
        ("user", "rather this"),
        ("assistant", "both"),
    ]
    assert await reasons(here, session) == {first.reply_id: "completed"}
    usage = (await here.sessions.get(TENANT, session)).usage
    assert usage.input_tokens == 20
    assert await violations(here.database, session) == []


async def test_a_message_that_steers_while_the_answer_is_written_is_answered_too(
    here: Replica,
) -> None:
    model = Waits([say("one"), say("two")])
    session = await here.session()
    worker = here.worker(model)
    await worker.start()
    first = await here.send(session, "first")
    await until_running(here, session)
    joined = await here.send(session, "and this", on_busy="steer")
    model.let_go.set()
    await until_idle(here, session)
    await worker.stop(NOW)

    assert joined.reply_id == first.reply_id
    assert [text for _, text in await said(here, session)] == ["first", "one", "and this", "two"]
    assert await violations(here.database, session) == []


async def test_an_end_that_comes_too_late_is_refused_and_the_reply_goes_on(here: Replica) -> None:
    """The message is accepted after the holder has decided that the reply is over."""
    model = WrittenModel([say("one"), say("two")])
    session = await here.session()
    first = await here.send(session, "first")
    worker = here.worker(model)
    append, late = worker._leases.append, asyncio.Event()

    async def steered(lease: Any, batch: Any, *, ttl: Any) -> Any:
        if not late.is_set() and any(draft.type == "REPLY_END" for draft in batch.drafts):
            late.set()
            await here.send(session, "wait", on_busy="steer")
        return await append(lease, batch, ttl=ttl)

    worker._leases.append = steered
    await worker.start()
    await until_idle(here, session)
    await worker.stop(NOW)
    log = await here.log_of(session)

    assert late.is_set()
    assert [text for _, text in await said(here, session)] == ["first", "one", "wait", "two"]
    assert [each.type for each in log].count("REPLY_END") == 1
    assert (await here.row(session)).epoch == 1
    assert await reasons(here, session) == {first.reply_id: "completed"}
    assert await violations(here.database, session) == []


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_stop_that_comes_just_before_the_end_is_kept_to(
    here: Replica, on_busy: Any
) -> None:
    model = WrittenModel([say("one"), say("two")])
    session = await here.session()
    first = await here.send(session, "first")
    worker = here.worker(model)
    append, late = worker._leases.append, asyncio.Event()

    async def stopped(lease: Any, batch: Any, *, ttl: Any) -> Any:
        if not late.is_set() and any(draft.type == "REPLY_END" for draft in batch.drafts):
            late.set()
            await here.send(session, "stop", on_busy=on_busy)
        return await append(lease, batch, ttl=ttl)

    worker._leases.append = stopped
    await worker.start()
    await until_idle(here, session)
    await worker.stop(NOW)
    kept = ["one"] if on_busy == "interrupt" else []

    assert (await reasons(here, session))[first.reply_id] == "interrupted"
    assert [text for _, text in await said(here, session)] == ["first", *kept, "stop", "two"]
    assert await violations(here.database, session) == []


async def test_a_reply_that_is_stopped_has_its_steering_messages_in_the_conversation(
    here: Replica,
) -> None:
    slow = Hang("Slow")
    model = WrittenModel([call(("c1", "Slow", "{}")), say("on")])
    session = await here.session()
    worker = here.worker(model, slow)
    await worker.start()
    await here.send(session, "first")
    await asyncio.wait_for(slow.begun.wait(), 10)
    await here.send(session, "rather this", on_busy="steer")
    await here.replies.interrupt(TENANT, session, patience=timedelta(seconds=20))
    late = await here.send(session, "and then", on_busy="steer")
    await until_idle(here, session)
    await worker.stop(NOW)

    assert [text for _, text in await said(here, session)] == [
        "first",
        "",
        "rather this",
        "and then",
        "on",
    ]
    assert (await reasons(here, session))[late.reply_id] == "completed"
    assert await violations(here.database, session) == []


async def test_a_steered_reply_goes_on_elsewhere_with_the_message(here: Replica) -> None:
    slow = Hang("Slow")
    session = await here.session()
    first = here.worker(WrittenModel([call(("c1", "Slow", "{}"))]), slow)
    await first.start()
    await here.send(session, "first")
    await asyncio.wait_for(slow.begun.wait(), 10)
    await here.send(session, "rather this", on_busy="steer")
    await first.stop(NOW)
    model = WrittenModel([say("both")])
    second = here.worker(model)
    await second.start()
    await until_idle(here, session)
    await second.stop(NOW)

    assert [message.text for message in model.prompts[0].context][-1] == "rather this"
    assert await violations(here.database, session) == []


async def test_steer_in_an_idle_session_is_a_message_like_any_other(here: Replica) -> None:
    session = await here.session()
    worker = here.worker(WrittenModel([say("one")]))
    await worker.start()
    accepted = await here.send(session, "first", on_busy="steer")
    await until_idle(here, session)
    await worker.stop(NOW)

    assert await reasons(here, session) == {accepted.reply_id: "completed"}


async def test_a_message_that_interrupts_stops_one_that_has_not_begun(here: Replica) -> None:
    session = await here.session()
    first = await here.send(session, "first")
    second = await here.send(session, "second", on_busy="interrupt")
    worker = here.worker(WrittenModel([say("two")]))
    await worker.start()
    await until_idle(here, session)
    await worker.stop(NOW)

    assert await reasons(here, session) == {
        first.reply_id: "interrupted",
        second.reply_id: "completed",
    }
    assert await violations(here.database, session) == []


async def test_a_reply_that_has_written_nothing_is_taken_back_too(here: Replica) -> None:
    agent = await here.agent(injection={"inject_runtime_state": False})
    session = await here.session(agent)
    worker = here.worker(WrittenModel([[WrittenModel.HANG], say("two")]))
    await worker.start()
    first = await here.send(session, "first")
    await until_running(here, session)
    await here.send(session, "second", on_busy="rollback")
    await until_idle(here, session)
    await worker.stop(NOW)

    assert (await reasons(here, session))[first.reply_id] == "interrupted"
    assert [text for _, text in await said(here, session)] == ["first", "second", "two"]
    assert await violations(here.database, session) == []


async def test_rollback_after_interrupt_takes_back_after_all(here: Replica) -> None:
    session = await here.session()
    slow = Hang("Slow", stubborn=True)
    worker = here.worker(WrittenModel([call(("c1", "Slow", "{}")), say("two")]), slow)
    await worker.start()
    await here.send(session, "first")
    await asyncio.wait_for(slow.begun.wait(), 10)
    await here.store.interrupt(TENANT, session)
    await here.send(session, "second", on_busy="rollback")
    await until_idle(here, session)
    slow.let_go.set()
    await worker.stop(NOW)

    assert [text for _, text in await said(here, session)] == ["first", "second", "two"]
    assert await violations(here.database, session) == []


@pytest.mark.parametrize("on_busy", ["enqueue", "reject", "interrupt", "rollback", "steer"])
async def test_many_messages_at_once_are_each_answered_once(here: Replica, on_busy: Any) -> None:
    session = await here.session()
    worker = here.worker(WrittenModel([say("x")] * 200))
    here.replies._worker = worker
    await worker.start()

    async def send(number: int) -> str | None:
        try:
            return (await here.send(session, str(number), on_busy=on_busy)).reply_id
        except SessionBusy:
            return None

    replies = await asyncio.gather(*[send(number) for number in range(40)])
    await until_idle(here, session)
    await worker.stop(NOW)
    accepted = {reply_id for reply_id in replies if reply_id is not None}
    received = [text for role, text in await said(here, session) if role == "user"]

    assert set(await reasons(here, session)) == accepted
    assert len(received) == len([reply_id for reply_id in replies if reply_id is not None])
    assert await violations(here.database, session) == []
