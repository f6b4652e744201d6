"""Old beginnings of logs are dropped, and whoever asks for them is told so."""

from datetime import timedelta

import pytest

from app.adapters.postgres.database import Database
from app.core.errors import CursorGone
from tests.engine.test_durability import until, until_idle, written
from tests.support.checker import violations
from tests.support.models import WrittenModel, call, say
from tests.support.replica import TENANT, Replica
from tests.support.tools import Hang

DAY = timedelta(days=1)


@pytest.fixture
async def here(own_database: Database) -> Replica:
    return Replica(own_database)


async def aged(replica: Replica, session: str, *, through: int) -> None:
    await replica.database.run(
        "UPDATE events SET at = at - interval '2 days' WHERE session_id = :id AND seq <= :seq",
        {"id": session, "seq": through},
    )


async def seqs(replica: Replica, session: str) -> list[int]:
    rows = await replica.database.all(
        "SELECT seq FROM events WHERE session_id = :id ORDER BY seq", {"id": session}
    )
    return [row.seq for row in rows]


async def test_what_is_old_and_over_is_dropped_without_a_gap(here: Replica) -> None:
    session, other = await here.session(), await here.session()
    await here.send(session)
    end = await written(here, session, here.worker(WrittenModel([say("one")])))
    await here.send(session)
    last = await written(here, session, here.worker(WrittenModel([say("two")])))
    await here.send(other)
    whole = await written(here, other, here.worker(WrittenModel([say("three")])))
    await aged(here, session, through=end)
    dropped = await here.log.prune(DAY)
    again = await here.log.prune(DAY)
    await here.send(session)
    newest = await written(here, session, here.worker(WrittenModel([say("four")])))
    state, _ = await here.sessions.state(TENANT, session)

    assert (dropped, again) == (end, 0)
    assert await seqs(here, session) == list(range(end + 1, newest + 1))
    assert await seqs(here, other) == list(range(1, whole + 1))
    assert [message.text for message in state.context[1::2]] == ["one", "two", "four"]
    assert newest > last
    assert await violations(here.database, other) == []


async def test_a_cursor_before_what_is_kept_is_gone_and_one_at_its_edge_is_not(
    here: Replica,
) -> None:
    session = await here.session()
    await here.send(session)
    end = await written(here, session, here.worker(WrittenModel([say("one")])))
    await aged(here, session, through=end)
    await here.log.prune(DAY)

    assert await here.logs.check_cursor(TENANT, session, end) == end
    assert await here.logs.bounds(TENANT, session) == (end + 1, end)
    for after in (0, end - 1):
        with pytest.raises(CursorGone):
            await here.logs.check_cursor(TENANT, session, after)


async def test_what_a_reply_still_needs_is_kept_however_old(here: Replica) -> None:
    slow = Hang("Slow")
    session = await here.session()
    await here.send(session)
    end = await written(here, session, here.worker(WrittenModel([say("one")])))
    worker = here.worker(WrittenModel([call(("c", "Slow", "{}")), say("ok")]), slow)
    await worker.start()
    await here.send(session)
    queued = await here.send(session)
    await until(slow.begun.is_set)
    await aged(here, session, through=10_000)
    await here.log.prune(DAY)
    kept = await seqs(here, session)
    await worker.stop(timedelta(0))
    await written(here, session, here.worker(WrittenModel([say("ok"), say("ok")])))

    assert kept[0] == end + 1
    assert queued.after_seq + 1 in kept
    await until_idle(here, session)


async def test_a_slow_reader_behind_what_was_dropped_is_told_and_not_given_the_rest(
    here: Replica,
) -> None:
    session = await here.session()
    await here.send(session)
    end = await written(here, session, here.worker(WrittenModel([say("one")])))
    await here.send(session)
    await written(here, session, here.worker(WrittenModel([say("two")])))
    reader = Replica(here.database).logs.tail(session, after=1)
    await aged(here, session, through=end)
    await here.log.prune(DAY)

    with pytest.raises(CursorGone):
        await anext(reader)
