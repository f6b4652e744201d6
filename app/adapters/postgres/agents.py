"""Agents and their versions in Postgres."""

from datetime import datetime

from app.adapters.postgres.database import Database, Row, Transaction, moment
from app.adapters.postgres.once import happen_once
from app.adapters.postgres.paging import page, read_cursor, read_number
from app.core.errors import NotFound, VersionMismatch
from app.core.records import Agent
from app.core.specs import AgentSpec
from app.ports.stores import Made, Once, Page

_COLUMNS = """
a.id, v.version, v.spec::text AS spec, a.created_at, v.created_at AS updated_at
FROM agents a JOIN agent_versions v ON v.agent_id = a.id
"""
_INSERT = """
WITH a AS (
  INSERT INTO agents (id, tenant_id, version) VALUES (:id, :tenant, 1) RETURNING created_at
)
INSERT INTO agent_versions (agent_id, version, tenant_id, spec, created_at)
SELECT :id, 1, :tenant, CAST(:spec AS json), created_at FROM a
RETURNING created_at
"""
_GET = f"""
SELECT {_COLUMNS}
WHERE a.id = :id AND a.tenant_id = :tenant
  AND v.version = coalesce(CAST(:version AS integer), a.version)
  AND (NOT a.deleted OR CAST(:version AS integer) IS NOT NULL)
"""
_PAGE = f"""
SELECT {_COLUMNS}
WHERE a.tenant_id = :tenant AND NOT a.deleted AND v.version = a.version
  AND (CAST(:cursor AS text) IS NULL OR a.id < :cursor)
ORDER BY a.id DESC LIMIT :limit
"""
_VERSIONS = f"""
SELECT {_COLUMNS}
WHERE a.id = :id AND a.tenant_id = :tenant AND NOT a.deleted
  AND (CAST(:cursor AS bigint) IS NULL OR v.version < :cursor)
ORDER BY v.version DESC LIMIT :limit
"""
_REPLACE = """
WITH a AS (
  UPDATE agents SET version = version + 1, updated_at = clock_timestamp()
  WHERE id = :id AND tenant_id = :tenant AND NOT deleted
    AND version = coalesce(CAST(:if_version AS bigint), version)
  RETURNING version, created_at, updated_at
), v AS (
  INSERT INTO agent_versions (agent_id, version, tenant_id, spec, created_at)
  SELECT :id, version, :tenant, CAST(:spec AS json), updated_at FROM a
)
SELECT version, created_at, updated_at FROM a
"""
_DELETE = """
UPDATE agents SET deleted = true WHERE id = :id AND tenant_id = :tenant AND NOT deleted
"""


class PostgresAgents:
    """Keeps agents; see `app.ports.stores.Agents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant: str, agent_id: str, spec: AgentSpec, *, once: Once | None
    ) -> Made[Agent]:
        """Keep a new agent as version 1."""

        async def work(transaction: Transaction) -> Agent:
            values = {"id": agent_id, "tenant": tenant, "spec": spec.model_dump_json()}
            row = await transaction.one(_INSERT, values)
            return _agent(agent_id, 1, spec, row.created_at, row.created_at)

        return await happen_once(self._database, tenant, once, Agent, work)

    async def get(self, tenant: str, agent_id: str, *, version: int | None = None) -> Agent:
        """Return a version of an agent, the newest by default."""
        values = {"id": agent_id, "tenant": tenant, "version": version}
        row = await self._database.first(_GET, values)
        if row is None:
            raise NotFound(
                f"There is no agent {agent_id}{f' version {version}' if version else ''}."
            )
        return agent_of(row)

    async def page(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Agent]:
        """List the newest version of each agent, newest agent first."""
        values = {"tenant": tenant, "limit": limit + 1, "cursor": read_cursor(cursor, of="agents")}
        rows = await self._database.all(_PAGE, values)
        return page(rows, limit=limit, of="agents", item=agent_of, place=lambda row: row.id)

    async def versions(
        self, tenant: str, agent_id: str, *, limit: int, cursor: str | None
    ) -> Page[Agent]:
        """List an agent's versions, newest first."""
        place = read_number(cursor, of="versions")
        values = {"id": agent_id, "tenant": tenant, "limit": limit + 1, "cursor": place}
        rows = await self._database.all(_VERSIONS, values)
        if not rows and place is None:
            raise NotFound(f"There is no agent {agent_id}.")
        return page(rows, limit=limit, of="versions", item=agent_of, place=lambda row: row.version)

    async def replace(
        self, tenant: str, agent_id: str, spec: AgentSpec, *, if_version: int | None
    ) -> Agent:
        """Make a new version."""
        values = {
            "id": agent_id,
            "tenant": tenant,
            "spec": spec.model_dump_json(),
            "if_version": if_version,
        }
        row = await self._database.first(_REPLACE, values)
        if row is None:
            current = await self.get(tenant, agent_id)
            raise VersionMismatch(
                f"The agent is at version {current.version}, not {if_version}: read it again and "
                "repeat your change."
            )
        return _agent(agent_id, row.version, spec, row.created_at, row.updated_at)

    async def delete(self, tenant: str, agent_id: str) -> None:
        """Hide an agent from lists and new sessions; its sessions go on."""
        if not await self._database.run(_DELETE, {"id": agent_id, "tenant": tenant}):
            raise NotFound(f"There is no agent {agent_id}.")


def agent_of(row: Row) -> Agent:
    """Make an agent of a row with its id, version, spec and times."""
    spec = AgentSpec.model_validate_json(row.spec)
    return _agent(row.id, row.version, spec, row.created_at, row.updated_at)


def _agent(
    agent_id: str, version: int, spec: AgentSpec, created_at: datetime, updated_at: datetime
) -> Agent:
    parts = {name: getattr(spec, name) for name in AgentSpec.model_fields}
    return Agent.model_construct(
        **parts,
        id=agent_id,
        version=version,
        created_at=moment(created_at),
        updated_at=moment(updated_at),
    )
