"""What the driver writes to: where it stands, and how it tells what happened."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from app.core.apply import Standing
from app.core.events import Event


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
    def draining(self) -> asyncio.Event:
        """Set when this process is about to end: the reply goes on elsewhere behind this step."""
        ...

    def emit(self, event: Event) -> None:
        """Let an event happen: it changes the standing at once, and is recorded soon.

        Events of one journal are recorded in the order in which they are emitted.
        """
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
