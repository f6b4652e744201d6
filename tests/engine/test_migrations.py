"""A database of an earlier release goes on where it stood."""

import asyncio
import json
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config

from app.adapters.postgres.database import Database
from app.adapters.postgres.migrating import MIGRATIONS, migrate
from app.core.events import MessageReceivedEvent
from app.core.messages import UserMsg
from app.core.specs import AgentSpec
from app.core.state import AgentState
from tests.engine.test_durability import until_idle
from tests.support.checker import violations
from tests.support.models import WrittenModel, say
from tests.support.replica import TENANT, Replica

NEW = {"calls", "withdraw", "pending", "inputs"}


def alembic_config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config


@pytest.fixture
async def old_url(database_url: str) -> str:
    """The address of a database as release 0001 left it."""
    name = f"old_{uuid4().hex}"
    admin = Database(database_url, pool_size=1)
    await admin.run(f"CREATE DATABASE {name}", {})
    await admin.close()
    url = re.sub(r"/postgres\b(?=\?|$)", f"/{name}", database_url, count=1)
    await asyncio.to_thread(command.upgrade, alembic_config(url), "0001")
    return url


async def test_a_message_that_was_accepted_before_is_answered_after(old_url: str) -> None:
    database = Database(old_url, pool_size=5)
    spec = AgentSpec(name="Friday").model_dump(mode="json", include={"name", "system_prompt"})
    message = UserMsg("user", "hi").model_copy(update={"id": "msg_1"})
    received = MessageReceivedEvent(reply_id="rep_1", message=message).encode().decode()
    head = AgentState(session_id="ses_1").model_dump_json(exclude={"context"})
    names = {
        "tenant": TENANT,
        "spec": json.dumps(spec),
        "head": head,
        "message": message.model_dump_json(),
        "event": received,
    }
    for statement in (
        "INSERT INTO agents (id, tenant_id, version) VALUES ('agt_1', :tenant, 1)",
        (
            "INSERT INTO agent_versions (agent_id, version, tenant_id, spec) "
            "VALUES ('agt_1', 1, :tenant, CAST(:spec AS json))"
        ),
        (
            "INSERT INTO sessions (id, tenant_id, agent_id, agent_version, title, head, queued, "
            "next_seq) VALUES ('ses_1', :tenant, 'agt_1', 1, '', CAST(:head AS json), 1, 2)"
        ),
        (
            "INSERT INTO replies (id, tenant_id, session_id, seq, message, context) "
            "VALUES ('rep_1', :tenant, 'ses_1', 1, CAST(:message AS json), '{}')"
        ),
        (
            "INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data) "
            "VALUES ('ses_1', 1, :tenant, 0, 'rep_1', 'MESSAGE_RECEIVED', CAST(:event AS json))"
        ),
    ):
        await database.run(statement, names)
    await migrate(database)
    replica = Replica(database)
    worker = replica.worker(WrittenModel([say("late, but here")]))
    await worker.start()
    await until_idle(replica, "ses_1")
    await worker.stop(timedelta(0))
    state, _ = await replica.sessions.state(TENANT, "ses_1")

    assert [message.text for message in state.context] == ["hi", "late, but here"]
    assert await violations(database, "ses_1") == []
    await database.close()


async def test_a_migration_can_be_taken_back_and_made_again(old_url: str) -> None:
    database = Database(old_url, pool_size=2)

    async def columns() -> set[str]:
        rows = await database.all(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'sessions'", {}
        )
        return {row.column_name for row in rows}

    before = await columns()
    await migrate(database)
    made = await columns()
    await asyncio.to_thread(command.downgrade, alembic_config(old_url), "0001")
    after = await columns()
    await migrate(database)

    assert before == after == made - NEW
    assert await columns() >= NEW
    await database.close()
