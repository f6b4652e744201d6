"""Replicas without HTTP, in the test's own process: their parts can be held still and broken."""

from datetime import timedelta
from typing import Any

from app.adapters.postgres.agents import PostgresAgents
from app.adapters.postgres.database import Database
from app.adapters.postgres.event_log import PostgresEventLog
from app.adapters.postgres.leases import PostgresLeases
from app.adapters.postgres.replies import PostgresReplies
from app.adapters.postgres.sessions import PostgresSessions
from app.core.events import Event, decode
from app.core.messages import TextBlock
from app.core.records import Accepted, Agent
from app.core.specs import AgentSpec
from app.engine.equipment import Equipment
from app.engine.event_log import Logs
from app.engine.ids import new_id, utc_now
from app.engine.replies import Replies, Said
from app.engine.wakeups import Wakeups
from app.engine.worker import Worker
from app.ports.leases import Leases
from app.ports.models import ChatModel, ToolSchema
from app.ports.stores import NewSession, OnBusy
from app.ports.tools import Tool

TENANT = "default"


class Replica:
    """What one process has, beside HTTP."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.log = PostgresEventLog(database)
        self.wakeups = Wakeups(self.log)
        self.logs = Logs(self.log, self.wakeups)
        self.leases: Leases = PostgresLeases(database)
        self.store = PostgresReplies(database, PostgresLeases(database))
        self.replies = Replies(self.store, self.logs, self.wakeups, clock=utc_now, new_id=new_id)
        self.sessions = PostgresSessions(database)
        self.agents = PostgresAgents(database)

    def worker(self, model: ChatModel, *tools: Tool, ttl: float = 20, capacity: int = 50) -> Worker:
        def equip(agent: Agent) -> Equipment:
            return Equipment(
                name=agent.name,
                system_prompt=agent.system_prompt,
                model=model,
                tools={tool.schema.name: tool for tool in tools},
                injection=agent.injection,
                context=agent.context,
                max_iters=agent.react.max_iters,
                external={
                    tool.name: ToolSchema(tool.name, tool.description, tool.parameters)
                    for tool in agent.tools.external
                },
                asks={name: agent.decisions(name) for name in agent.interrupt_on},
            )

        return Worker(
            self.leases,
            self.wakeups,
            equip,
            clock=utc_now,
            new_id=new_id,
            lease_ttl=timedelta(seconds=ttl),
            capacity=capacity,
        )

    async def agent(self, **spec: Any) -> Agent:
        wanted = AgentSpec(**({"name": "Friday"} | spec))
        return (await self.agents.create(TENANT, new_id("agt"), wanted, once=None)).value

    async def session(self, agent: Agent | None = None, *, follow: bool = False) -> str:
        used = agent or await self.agent()
        new = NewSession(used.id, follow, "", {}, None, {}, None)
        return (await self.sessions.create(TENANT, new_id("ses"), new, once=None)).value.id

    async def send(
        self, session: str, text: str = "hi", *, on_busy: OnBusy = "enqueue"
    ) -> Accepted:
        said = Said("user", [TextBlock(text=text)], on_busy, {}, None)
        return (await self.replies.submit(TENANT, session, said, once=None)).value

    async def log_of(self, session: str) -> list[Event]:
        entries = await self.log.read(session, after=0, limit=100_000)
        return [decode(entry.data) for entry in entries]

    async def row(self, session: str) -> Any:
        return await self.database.first(
            "SELECT epoch, queued, reply_id, interrupt, withdraw, attempts, inputs, pending, owner, "
            "lease_until > clock_timestamp() AS held FROM sessions WHERE id = :id",
            {"id": session},
        )
