"""One writer a session: an old fence writes nothing."""

from datetime import timedelta

import pytest

from app.adapters.postgres.database import Database
from app.adapters.postgres.leases import PostgresLeases
from app.core.errors import Fenced
from app.core.events import ReplyStartEvent
from app.ports.leases import Batch, Draft, Lease
from tests.support.service import Service

TTL = timedelta(seconds=30)


async def queued(service: Service, database: Database) -> str:
    """A session with a message that nobody takes: another holder has the lease."""
    session = await service.session()
    await database.run(
        "UPDATE sessions SET lease_until = clock_timestamp() + interval '1 hour' WHERE id = :id",
        {"id": session},
    )
    answer = await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "hi"})
    assert answer.status_code == 202
    return session


async def taken(database: Database, session: str, owner: str) -> Lease:
    """Take a session from its holder, as if that one's lease had ended."""
    row = await database.first(
        "UPDATE sessions SET lease_until = clock_timestamp() + interval '1 hour', owner = :owner, "
        "epoch = epoch + 1 WHERE id = :id RETURNING epoch",
        {"id": session, "owner": owner},
    )
    return Lease(tenant="default", session_id=session, owner=owner, epoch=row.epoch)


def batch(session: str) -> Batch:
    event = ReplyStartEvent(reply_id="rep_x", session_id=session, name="Friday")
    return Batch([Draft(event.type, event.reply_id, event.encode())])


async def test_a_writer_whose_lease_was_taken_writes_nothing(
    service: Service, database: Database
) -> None:
    leases = PostgresLeases(database)
    session = await queued(service, database)
    first = await taken(database, session, "one")
    second = await taken(database, session, "two")
    await leases.append(second, batch(session), ttl=TTL)
    before = await service.log(session)
    with pytest.raises(Fenced):
        await leases.append(first, batch(session), ttl=TTL)

    assert await service.log(session) == before
    assert [event["type"] for event in before] == ["MESSAGE_RECEIVED", "REPLY_START"]
    await service.client.delete(f"/v1/sessions/{session}")


async def test_a_late_release_does_not_free_the_next_holder(
    service: Service, database: Database
) -> None:
    leases = PostgresLeases(database)
    session = await queued(service, database)
    first = await taken(database, session, "one")
    second = await taken(database, session, "two")
    await leases.release(first, pause=timedelta(0))

    assert await leases.claim(owner="three", ttl=TTL, session_id=session) is None
    assert (await leases.append(second, Batch(), ttl=TTL)).base == 2
    await service.client.delete(f"/v1/sessions/{session}")


async def test_a_session_with_a_living_holder_is_not_taken(
    service: Service, database: Database
) -> None:
    session = await queued(service, database)

    assert await PostgresLeases(database).claim(owner="x", ttl=TTL, session_id=session) is None
    await service.client.delete(f"/v1/sessions/{session}")


async def test_an_idle_session_is_not_taken(service: Service, database: Database) -> None:
    session = await service.session()

    assert await PostgresLeases(database).claim(owner="x", ttl=TTL, session_id=session) is None


async def test_a_deleted_session_fences_its_writer_off(
    service: Service, database: Database
) -> None:
    leases = PostgresLeases(database)
    session = await queued(service, database)
    holder = await taken(database, session, "one")
    await service.client.delete(f"/v1/sessions/{session}")

    with pytest.raises(Fenced):
        await leases.append(holder, batch(session), ttl=TTL)
