"""A journal that keeps its events, and dies after as many of them as a test says."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from app.core.apply import Standing, apply
from app.core.events import Event, MessageReceivedEvent, ReplyEndEvent
from app.core.messages import Msg
from app.core.records import PendingCall
from app.core.specs import ContextConfig, InjectionConfig
from app.core.state import AgentState
from app.engine.equipment import Equipment
from app.engine.tool_calls import Bench
from app.ports.models import ChatModel
from app.ports.tools import Tool

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


class Died(BaseException):
    """The process is gone: nothing in it can catch this."""


@dataclass
class Recorder:
    standing: Standing
    events: list[Event] = field(default_factory=list)
    dies_after: int | None = None
    surroundings: dict[str, str] = field(default_factory=dict)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    withdrawing: bool = False
    parked: bool = False
    steering: list[Msg] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        if self.dies_after is not None and len(self.events) >= self.dies_after:
            raise Died
        apply(self.standing, event)
        self.events.append(event)

    def park(self, event: Event, calls: Sequence[PendingCall]) -> None:
        self.emit(event)
        self.parked = True

    async def end(self, event: ReplyEndEvent, *, withdrawn: bool) -> bool:
        if self.steering:
            return False
        self.emit(event)
        return True

    async def inputs(self) -> Sequence[Msg]:
        messages, self.steering = self.steering, []
        for message in messages:
            received = MessageReceivedEvent(reply_id=self.standing.state.reply_id, message=message)
            apply(self.standing, received)
            self.events.append(received)
        return messages

    async def settle(self) -> None:
        await asyncio.sleep(0)

    async def environment(self) -> Mapping[str, str]:
        return self.surroundings


def numbered(prefix: str = "") -> "NumberedIds":
    return NumberedIds(prefix)


@dataclass
class NumberedIds:
    """Ids that tests can read."""

    prefix: str = ""
    count: int = 0

    def __call__(self, kind: str) -> str:
        self.count += 1
        return f"{self.prefix}{kind}_{self.count}"


def bench(
    recorder: Recorder,
    model: ChatModel,
    tools: list[Tool],
    *,
    injection: InjectionConfig | None = None,
    max_iters: int = 50,
    ids: NumberedIds | None = None,
) -> Bench:
    equipment = Equipment(
        name="Friday",
        system_prompt="SYS",
        model=model,
        tools={tool.schema.name: tool for tool in tools},
        injection=injection or InjectionConfig(),
        context=ContextConfig(),
        max_iters=max_iters,
    )
    return Bench(recorder, equipment, lambda: NOON, ids or numbered())


def asked(message: Msg, *, reply_id: str = "rep_1", state: AgentState | None = None) -> Recorder:
    """A recorder whose log begins with a message that wants an answer."""
    recorder = Recorder(Standing(state=state or AgentState(session_id="ses_1")))
    recorder.emit(MessageReceivedEvent(reply_id=reply_id, message=message))
    return recorder
