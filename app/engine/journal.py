"""What the driver writes to: where it stands, and how it tells what happened."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from app.core.apply import Standing
from app.core.events import Event, ReplyEndEvent
from app.core.messages import Msg
from app.core.records import PendingCall


class Journal(Protocol):
    """The record of one session while its reply is being written."""

    @property
    def standing(self) -> Standing:
        """Where the session stands, after every event emitted so far."""
        ...

    @property
    def interrupted(self) -> asyncio.Event:
        """Set when somebody asked that the reply be stopped."""
        ...

    @property
    def withdrawing(self) -> bool:
        """Whether what the reply wrote is to be taken back when it is stopped."""
        ...

    @property
    def parked(self) -> bool:
        """Whether the reply waits for somebody, and the session is let go."""
        ...

    @property
    def draining(self) -> asyncio.Event:
        """Set when this process is about to end: the reply goes on elsewhere behind this step."""
        ...

    def emit(self, event: Event) -> None:
        """Let an event happen: it changes the standing at once, and is recorded soon.

        Events of one journal are recorded in the order in which they are emitted.
        """
        ...

    def park(self, event: Event, calls: Sequence[PendingCall]) -> None:
        """Let the reply begin to wait for calls: with what is recorded next the session is let go."""
        ...

    async def end(self, event: ReplyEndEvent, *, withdrawn: bool) -> bool:
        """Let the reply end, and wait until that is recorded.

        Args:
            event: The end.
            withdrawn: Whether what the reply wrote was taken back.

        Returns:
            Whether it has ended. Not when people still want something of it: a message waits to join
            it, or it is to be stopped or taken back. Then it goes on.
        """
        ...

    async def inputs(self) -> Sequence[Msg]:
        """Return the messages that wait to join the reply, received and not yet in the context."""
        ...

    async def settle(self) -> None:
        """Wait until everything emitted so far is recorded.

        Raises:
            Fenced: The session is another holder's now.
            Unavailable: It is not known whether the events were recorded.
        """
        ...

    async def environment(self) -> Mapping[str, str]:
        """Return the live values of the session's surroundings, as text."""
        ...
