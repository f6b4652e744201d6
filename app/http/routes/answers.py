"""Answers to calls that wait: people's decisions, and results of tools that the client executes."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.core.records import Accepted
from app.engine.answers import Answers, Decided, Decisions, Results, Returned
from app.http.auth import Caller
from app.http.dependencies import (
    CurrentCaller,
    Engine,
    EngineParts,
    Idempotency,
    wants_events,
)
from app.http.schemas import NewDecisions, NewToolResults
from app.http.sse import DESCRIBED, stream
from app.ports.stores import Once

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["people in the loop"])

RESPONSES: dict[int | str, dict[str, object]] = {
    200: {
        "description": "The events of the reply as it goes on (`Accept: text/event-stream`).",
        "content": DESCRIBED,
    },
    409: {"description": "A call does not wait for this, or no longer. Nothing was taken."},
}


@router.post("/confirmations", status_code=202, response_model=Accepted, responses=RESPONSES)
async def confirm(
    session_id: str,
    decisions: NewDecisions,
    request: Request,
    engine: EngineParts,
    caller: CurrentCaller,
    once: Idempotency,
) -> Response:
    """Decide about calls that wait for a person.

    Some of several may be decided; the reply goes on when none is left. Which decisions a call allows
    stands in the metadata of its `REQUIRE_USER_CONFIRM`.

    - `approve`: the call runs. `edit`: it runs with `input` instead.
    - `reject`: it does not run, and the agent is told, with `message`.
    - `respond`: it does not run, and `message` is its result.
    """
    answers = Decisions(
        {
            each.tool_call_id: Decided(each.decision, each.input, each.message)
            for each in decisions.results
        }
    )
    return await _answered(request, engine, caller, session_id, answers, once)


@router.post("/tool-results", status_code=202, response_model=Accepted, responses=RESPONSES)
async def hand_in(
    session_id: str,
    results: NewToolResults,
    request: Request,
    engine: EngineParts,
    caller: CurrentCaller,
    once: Idempotency,
) -> Response:
    """Tell the results of calls that `REQUIRE_EXTERNAL_EXECUTION` announced.

    Some of several may be told; the reply goes on when none is left. A result is cut like any other.
    """
    answers = Results(
        {
            each.tool_call_id: Returned(each.output, succeeded=each.state == "success")
            for each in results.results
        }
    )
    return await _answered(request, engine, caller, session_id, answers, once)


async def _answered(
    request: Request,
    engine: Engine,
    caller: Caller,
    session_id: str,
    answers: Answers,
    once: Once | None,
) -> Response:
    made = await engine.replies.answer(caller.tenant, session_id, answers, once=once)
    accepted = made.value
    headers = {"Location": f"/v1/sessions/{session_id}/replies/{accepted.reply_id}"}
    if made.replayed:
        headers["Idempotency-Replayed"] = "true"
    if wants_events(request, default=False):
        return stream(
            engine.replies.follow(session_id, accepted), headers=headers, of_one_reply=True
        )
    return JSONResponse(accepted.model_dump(mode="json"), 202, headers)
