"""What people answer to calls that wait: decisions, and results of tools that they executed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.core.errors import Conflict, Invalid
from app.core.events import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from app.core.messages import DataBlock, Decision, TextBlock, ToolResultBlock
from app.core.records import PendingCall
from app.core.values import JsonObject


class Answers(Protocol):
    """Answers to some of the calls that a reply waits for."""

    @property
    def call_ids(self) -> Sequence[str]:
        """The calls, each once."""
        ...

    def event(
        self, reply_id: str, calls: Sequence[PendingCall], *, now: str
    ) -> UserConfirmResultEvent | ExternalExecutionResultEvent:
        """Make the event that tells the answers.

        Raises:
            Conflict: A call waits for something else.
            Invalid: A decision is not allowed for its call.
        """
        ...


@dataclass(frozen=True)
class Decided:
    """What a person decided about a call.

    Attributes:
        decision: What is to happen.
        input: The new arguments, for `edit`.
        message: Why it is rejected, or the answer in the tool's place.
    """

    decision: Decision
    input: JsonObject | None = None
    message: str = ""


@dataclass(frozen=True)
class Decisions:
    """Decisions by call, in the order in which they were sent."""

    by_call: Mapping[str, Decided]

    @property
    def call_ids(self) -> Sequence[str]:
        """The calls, each once."""
        return list(self.by_call)

    def event(
        self, reply_id: str, calls: Sequence[PendingCall], *, now: str
    ) -> UserConfirmResultEvent:
        """Make the event that tells the decisions."""
        _check_kind(calls, "confirm", "waits for its result at /tool-results, not for a decision")
        refused = [
            (f"/results/{at}/decision", f"one of: {', '.join(call.decisions)}")
            for at, call in enumerate(calls)
            if self.by_call[call.call.id].decision not in call.decisions
        ]
        if refused:
            raise Invalid("Not every decision is allowed for its call.", errors=refused)
        return UserConfirmResultEvent(
            reply_id=reply_id,
            confirm_results=[self._result(call) for call in calls],
            created_at=now,
        )

    def _result(self, pending: PendingCall) -> ConfirmResult:
        decided, call = self.by_call[pending.call.id], pending.call
        if decided.decision == "edit":
            edited = json.dumps(decided.input or {}, ensure_ascii=False)
            call = call.model_copy(update={"input": edited})
        return ConfirmResult(
            confirmed=decided.decision in {"approve", "edit"},
            tool_call=call,
            decision=decided.decision,
            message=decided.message,
        )


@dataclass(frozen=True)
class Returned:
    """A result of a call that somebody else executed."""

    output: str | list[TextBlock | DataBlock]
    succeeded: bool


@dataclass(frozen=True)
class Results:
    """Results by call, in the order in which they were sent."""

    by_call: Mapping[str, Returned]

    @property
    def call_ids(self) -> Sequence[str]:
        """The calls, each once."""
        return list(self.by_call)

    def event(
        self, reply_id: str, calls: Sequence[PendingCall], *, now: str
    ) -> ExternalExecutionResultEvent:
        """Make the event that tells the results."""
        _check_kind(calls, "external", "waits for a decision at /confirmations, not for a result")
        return ExternalExecutionResultEvent(
            reply_id=reply_id,
            execution_results=[
                ToolResultBlock(
                    id=call.call.id,
                    name=call.call.name,
                    output=self.by_call[call.call.id].output,
                    state="success" if self.by_call[call.call.id].succeeded else "error",
                    created_at=now,
                )
                for call in calls
            ],
            created_at=now,
        )


def _check_kind(calls: Sequence[PendingCall], kind: str, otherwise: str) -> None:
    for call in calls:
        if call.kind != kind:
            raise Conflict(f"The call {call.call.id} {otherwise}.")
