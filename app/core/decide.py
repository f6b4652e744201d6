"""What comes next: a step, chosen from where the session stands and from nothing else."""

from dataclasses import dataclass
from typing import TypeAlias

from app.core.apply import Standing
from app.core.messages import FinishedReason, ToolCallBlock


@dataclass(frozen=True)
class CallModel:
    """Ask the model; `last` forbids it to call tools, because the rounds are used up."""

    last: bool = False


@dataclass(frozen=True)
class RunTools:
    """Run these calls and record a result for each."""

    calls: list[ToolCallBlock]


@dataclass(frozen=True)
class AskPerson:
    """Wait, holding nothing, until these calls have been decided or executed by somebody else."""

    calls: list[ToolCallBlock]


@dataclass(frozen=True)
class Finish:
    """End the reply."""

    reason: FinishedReason


Step: TypeAlias = CallModel | RunTools | AskPerson | Finish


def decide(standing: Standing, *, max_iters: int) -> Step:
    """Choose the next step of the reply that is being written.

    The same standing always gives the same step, so a reply that died is resumed by asking again.

    Args:
        standing: Where the session stands, between two steps.
        max_iters: Rounds of reasoning and acting in one reply, at least 1. One more model call
            follows them, which may not use tools and is asked to sum up.
    """
    state = standing.state
    if calls := state.get_unfinished_tool_calls(standing.agent_name):
        waiting = standing.waiting_calls()
        known = standing.calls.decided.keys() | standing.calls.returned.keys()
        if waiting and not any(call.state == "allowed" or call.id in known for call in calls):
            return AskPerson(waiting)
        return RunTools(calls)
    if standing.answered:
        return Finish("completed" if state.cur_iter <= max_iters else "exceed_max_iters")
    if state.cur_iter > max_iters:
        return Finish("exceed_max_iters")
    return CallModel(last=state.cur_iter == max_iters)
