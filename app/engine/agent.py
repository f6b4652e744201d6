"""One agent in one process, without a database: the same core and the same driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.apply import Standing, apply
from app.core.events import (
    Event,
    MessageReceivedEvent,
    ReplyEndEvent,
    StateUpdatedEvent,
)
from app.core.messages import Msg
from app.core.records import PendingCall
from app.core.repair import repair
from app.core.specs import (
    ContextConfig,
    InjectionConfig,
    ReActConfig,
    environment_text,
    resolve_context,
)
from app.core.state import AgentState
from app.engine.equipment import Equipment, Meter
from app.engine.ids import Clock, NewId, new_id, timestamp, utc_now
from app.engine.reply import write_reply
from app.engine.tool_calls import Bench
from app.ports.models import ChatModel
from app.ports.tools import Tool


def stamped(message: Msg, *, clock: Clock, make_id: NewId) -> Msg:
    """Give a message and its blocks the ids and times that they lack."""
    now = timestamp(clock())
    blocks = [
        block.model_copy(
            update={
                "id": block.id or make_id("blk"),
                "created_at": block.created_at or now,
            }
        )
        for block in message.content
    ]
    return message.model_copy(
        update={
            "content": blocks,
            "id": message.id or make_id("msg"),
            "created_at": message.created_at or now,
        }
    )


class Agent:
    """An agent for notebooks, tests and programs that need no service.

    The state is `agent.state`, changed in place while a reply is written; dump it to keep it, and give
    it back to go on. One reply at a time.
    """

    def __init__(
        self,
        name: str,
        system_prompt: str,
        model: ChatModel,
        *,
        tools: Sequence[Tool] = (),
        state: AgentState | None = None,
        injection_config: InjectionConfig | None = None,
        context_config: ContextConfig | None = None,
        react_config: ReActConfig | None = None,
        environment: Mapping[str, str | float | bool] | None = None,
        clock: Clock = utc_now,
        make_id: NewId = new_id,
    ) -> None:
        """Put an agent together.

        Args:
            name: Under which its messages stand.
            system_prompt: What the model is told first, the same in every call.
            model: Who answers.
            tools: What it can do; functions become tools through `FunctionTool`.
            state: Where it stands; a new conversation when not given.
            injection_config: When it is told where it stands.
            context_config: How full the model's window may be.
            react_config: How many rounds a reply may have.
            environment: Live values of its surroundings, read before every reasoning step.
            clock: Tells the time.
            make_id: Makes ids.

        Raises:
            ValueError: The configs do not fit together, or two tools have the same name.
        """
        injection = injection_config or InjectionConfig()
        names = [tool.schema.name for tool in tools]
        if len(names) != len(set(names)):
            raise ValueError(f"Every tool needs a name of its own: {', '.join(sorted(names))}")
        self.name = name
        self.state = state if state is not None else AgentState()
        self.environment: Mapping[str, str | float | bool] = environment or {}
        self._clock, self._make_id = clock, make_id
        self._equipment = Equipment(
            name=name,
            system_prompt=system_prompt,
            model=model,
            tools={tool.schema.name: tool for tool in tools},
            injection=injection,
            context=resolve_context(context_config or ContextConfig(), injection),
            max_iters=(react_config or ReActConfig()).max_iters,
        )
        self._meter = Meter()
        self._writing = False
        if not self.state.session_id:
            self.state.session_id = make_id("ses")

    async def observe(self, messages: Msg | Sequence[Msg]) -> None:
        """Take messages into the context without answering them."""
        for message in _listed(messages):
            self.state.context.append(stamped(message, clock=self._clock, make_id=self._make_id))

    async def reply(self, messages: Msg | Sequence[Msg] | None = None) -> Msg:
        """Answer, and return the message.

        Cancelled, it ends the reply as interrupted and returns what was said until then.

        Returns:
            The assistant's message. A model that failed is told by its `finished_reason` and `error`.
        """
        async for _ in self.reply_stream(messages):
            pass
        tail = self.state.own_tail(self.name)
        if tail is not None:
            return tail
        return Msg(
            name=self.name,
            role="assistant",
            content=[],
            id=self.state.reply_id,
            finished_reason=self._last_end.finished_reason,
            error=self._last_end.error,
        )

    async def reply_stream(
        self, messages: Msg | Sequence[Msg] | None = None
    ) -> AsyncIterator[Event]:
        """Answer, event by event, `REPLY_END` last.

        Cancelling the task that iterates interrupts the reply: its last events still come, and the
        cancellation ends with them.

        Yields:
            What happened, as it happens.

        Raises:
            RuntimeError: This agent is writing a reply already.
        """
        if self._writing:
            raise RuntimeError(f"{self.name} is writing a reply; wait for it to end.")
        repair(self.state)
        journal = _MemoryJournal(self._standing(messages), lambda: self.environment)
        self._writing = True
        bench = Bench(journal, self._equipment, self._clock, self._make_id)
        reply_id = next(iter(journal.standing.received), self._make_id("rep"))
        driver = asyncio.ensure_future(write_reply(bench, self._meter, reply_id=reply_id))
        driver.add_done_callback(lambda _: journal.events.put_nowait(None))
        try:
            while (event := await _next(journal)) is not None:
                if isinstance(event, ReplyEndEvent):
                    self._last_end = event
                if not isinstance(event, StateUpdatedEvent):
                    yield event
            driver.result()
        finally:
            journal.interrupted.set()
            await asyncio.wait({driver})
            self.state = journal.standing.state
            self._writing = False

    def _standing(self, messages: Msg | Sequence[Msg] | None) -> Standing:
        standing = Standing(state=self.state, agent_name=self.name)
        reply_id = self._make_id("rep")
        for message in _listed(messages):
            whole = stamped(message, clock=self._clock, make_id=self._make_id)
            apply(standing, MessageReceivedEvent(reply_id=reply_id, message=whole))
        return standing


@dataclass
class _MemoryJournal:
    """A journal that keeps events only until they are read."""

    standing: Standing
    surroundings: Callable[[], Mapping[str, str | float | bool]]
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    withdrawing: bool = False
    parked: bool = False
    events: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue[Event | None])

    def emit(self, event: Event) -> None:
        apply(self.standing, event)
        self.events.put_nowait(event)

    def park(self, event: Event, calls: Sequence[PendingCall]) -> None:  # noqa: ARG002 - the event tells them
        self.emit(event)
        self.parked = True

    async def end(self, event: ReplyEndEvent, *, withdrawn: bool) -> bool:  # noqa: ARG002 - nobody can ask for it
        self.emit(event)
        return True

    async def inputs(self) -> Sequence[Msg]:
        return []

    async def settle(self) -> None:
        """Nothing to wait for: what is in memory is as safe as it will be."""

    async def environment(self) -> Mapping[str, str]:
        return {name: environment_text(value) for name, value in self.surroundings().items()}


async def _next(journal: _MemoryJournal) -> Event | None:
    """Return the next event; a cancellation while waiting for it interrupts the reply instead."""
    try:
        return await journal.events.get()
    except asyncio.CancelledError:
        if journal.interrupted.is_set():
            raise
        journal.interrupted.set()
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return await journal.events.get()


def _listed(messages: Msg | Sequence[Msg] | None) -> Sequence[Msg]:
    if messages is None:
        return []
    return [messages] if isinstance(messages, Msg) else messages
