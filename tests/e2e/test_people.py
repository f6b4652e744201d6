"""Calls that wait: for people's decisions, and for results that somebody else brings."""

import asyncio
from typing import Any

import pytest

from app.adapters.postgres.database import Database
from app.engine.tool_calls import DENIED
from tests.e2e.test_replicas import until_idle
from tests.http.problems import problem
from tests.support.checker import violations
from tests.support.service import Service, process, sse

LOOKUP = {
    "name": "Lookup",
    "description": "Looks something up.",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    },
}
EXTERNAL = {"tools": {"builtin": ["tasks"], "external": [LOOKUP]}}
ASKS = {"interrupt_on": {"TaskCreate": True}}
CREATE = '{"subject": "s", "description": "d"}'


async def waiting(service: Any, session: str, content: str, **more: Any) -> list[dict[str, Any]]:
    """Send a message and read its stream, which ends when the reply waits."""
    async with service.client.stream(
        "POST",
        f"/v1/sessions/{session}/messages",
        json={"content": content} | more,
        headers={"Accept": "text/event-stream"},
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        return [event async for event in sse(answer.aiter_lines())]


async def post(service: Any, session: str, path: str, *results: dict[str, Any], **headers: str):
    return await service.client.post(
        f"/v1/sessions/{session}/{path}", json={"results": list(results)}, headers=headers
    )


async def snapshot(service: Any, session: str) -> dict[str, Any]:
    return (await service.client.get(f"/v1/sessions/{session}")).json()


def results(log: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    texts: dict[str, str] = {}
    for event in log:
        if event["type"] == "TOOL_RESULT_TEXT_DELTA":
            texts[event["tool_call_id"]] = texts.get(event["tool_call_id"], "") + event["delta"]
    return {
        event["tool_call_id"]: (event["state"], texts.get(event["tool_call_id"], ""))
        for event in log
        if event["type"] == "TOOL_RESULT_END"
    }


async def test_a_call_waits_for_a_person_and_runs_when_it_is_approved(
    service: Service, database: Database
) -> None:
    session = await service.session(await service.agent(**ASKS))
    events = await waiting(service, session, f"call TaskCreate {CREATE}")
    held = await database.first(
        "SELECT owner, lease_until < 'infinity' AND lease_until > clock_timestamp() AS held "
        "FROM sessions WHERE id = :id",
        {"id": session},
    )
    before = await snapshot(service, session)
    reply = (
        await service.client.get(f"/v1/sessions/{session}/replies/{before['reply_id']}")
    ).json()
    answer = await post(
        service, session, "confirmations", {"tool_call_id": "call_1", "decision": "approve"}
    )
    await until_idle(service.client, session)
    log = await service.log(session)

    assert events[-1]["type"] == "REQUIRE_USER_CONFIRM"
    assert events[-1]["tool_calls"][0]["state"] == "asking"
    assert events[-1]["metadata"]["allowed_decisions"]["call_1"] == [
        "approve",
        "edit",
        "reject",
        "respond",
    ]
    assert (held.owner, held.held) == ("", False)
    assert (before["status"], reply["status"]) == ("awaiting", "awaiting")
    assert [call["id"] for call in before["pending_tool_calls"]] == ["call_1"]
    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    assert results(log)["call_1"][0] == "success"
    assert "REPLY_RESUMED" not in [event["type"] for event in log]
    assert await violations(database, session) == []


@pytest.mark.parametrize(
    ("decision", "wanted"),
    [
        (
            {"decision": "edit", "input": {"subject": "other", "description": "d"}},
            ("success", "Task (id=1) created successfully: other"),
        ),
        (
            {"decision": "reject", "message": "not now"},
            (
                "denied",
                DENIED.format(tool="TaskCreate") + "\nnot now",
            ),
        ),
        ({"decision": "respond", "message": "I did it"}, ("success", "I did it")),
    ],
)
async def test_a_person_may_decide_otherwise(
    service: Service, database: Database, decision: dict[str, Any], wanted: tuple[str, str]
) -> None:
    session = await service.session(await service.agent(**ASKS))
    await waiting(service, session, f"call TaskCreate {CREATE}")
    answer = await post(service, session, "confirmations", {"tool_call_id": "call_1"} | decision)
    await until_idle(service.client, session)
    tasks = (await service.client.get(f"/v1/sessions/{session}/state")).json()["tasks_context"]

    assert answer.status_code == 202, answer.text
    assert results(await service.log(session))["call_1"] == wanted
    assert len(tasks["tasks"]) == (decision["decision"] == "edit")
    assert await violations(database, session) == []


async def test_calls_are_decided_in_any_order_and_the_reply_goes_on_with_the_last(
    service: Service, database: Database
) -> None:
    session = await service.session(await service.agent(**ASKS))
    content = f"call TaskCreate {CREATE} TaskCreate {CREATE} TaskCreate {CREATE}"
    await waiting(service, session, content)
    first = await snapshot(service, session)
    one = await post(
        service, session, "confirmations", {"tool_call_id": "call_3", "decision": "reject"}
    )
    again = await post(
        service, session, "confirmations", {"tool_call_id": "call_3", "decision": "approve"}
    )
    left = await snapshot(service, session)
    mixed = await post(
        service,
        session,
        "confirmations",
        {"tool_call_id": "call_1", "decision": "approve"},
        {"tool_call_id": "call_9", "decision": "approve"},
    )
    both = await post(
        service,
        session,
        "confirmations",
        {"tool_call_id": "call_2", "decision": "respond", "message": "done"},
        {"tool_call_id": "call_1", "decision": "approve"},
        Accept="text/event-stream",
    )
    await until_idle(service.client, session)
    ends = {call: state for call, (state, _) in results(await service.log(session)).items()}

    assert [call["id"] for call in first["pending_tool_calls"]] == ["call_1", "call_2", "call_3"]
    assert one.json()["status"] == "awaiting"
    assert problem(again, 409, "conflict")
    assert problem(mixed, 409, "conflict")
    assert [call["id"] for call in left["pending_tool_calls"]] == ["call_1", "call_2"]
    assert both.text.count('"type":"USER_CONFIRM_RESULT"') == 1
    assert '"type":"REPLY_END"' in both.text
    assert ends == {"call_1": "success", "call_2": "success", "call_3": "denied"}
    assert await violations(database, session) == []


async def test_a_result_that_the_client_brings_is_the_calls_result(
    service: Service, database: Database
) -> None:
    session = await service.session(await service.agent(**EXTERNAL))
    events = await waiting(service, session, 'call Lookup {"q": "a"} Lookup {"q": "b"}')
    wrong = await post(
        service, session, "confirmations", {"tool_call_id": "call_1", "decision": "approve"}
    )
    one = await post(
        service, session, "tool-results", {"tool_call_id": "call_2", "output": "second"}
    )
    blocks = [
        {"type": "text", "text": "first"},
        {"type": "data", "source": {"type": "base64", "data": "AAAA", "media_type": "image/png"}},
    ]
    two = await post(
        service,
        session,
        "tool-results",
        {"tool_call_id": "call_1", "output": blocks, "state": "error"},
    )
    await until_idle(service.client, session)
    log = await service.log(session)
    types = [event["type"] for event in log]

    assert [call["state"] for call in events[-1]["tool_calls"]] == ["submitted", "submitted"]
    assert events[-1]["type"] == "REQUIRE_EXTERNAL_EXECUTION"
    assert problem(wrong, 409, "conflict")["detail"].startswith(
        "The call call_1 waits for its result"
    )
    assert (one.json()["status"], two.json()["status"]) == ("awaiting", "running")
    assert results(log) == {"call_1": ("error", "first"), "call_2": ("success", "second")}
    assert types.count("TOOL_RESULT_START") == 2
    assert types.count("TOOL_RESULT_DATA_DELTA") == 1
    assert types.count("EXTERNAL_EXECUTION_RESULT") == 2
    assert await violations(database, session) == []


async def test_calls_that_cannot_run_are_told_to_the_model_and_to_nobody_else(
    service: Service, database: Database
) -> None:
    session = await service.session(await service.agent(**EXTERNAL))
    final = await service.send(session, 'call Lookup {"nothing": 1}')
    log = await service.log(session)

    assert final["finished_reason"] == "completed"
    assert results(log)["call_1"][0] == "error"
    assert "REQUIRE_EXTERNAL_EXECUTION" not in [event["type"] for event in log]
    assert await violations(database, session) == []


async def test_waiting_survives_a_restart_and_the_answer_comes_to_another_replica(
    own_url: str, own_database: Database
) -> None:
    spec = {"name": "Friday"} | EXTERNAL | {"interrupt_on": {"Lookup": False, "TaskCreate": True}}
    async with process(own_url) as one:
        agent = (await one.client.post("/v1/agents", json=spec)).json()["id"]
        session = (await one.client.post("/v1/sessions", json={"agent_id": agent})).json()["id"]
        content = f'call Lookup {{"q": "a"}} TaskCreate {CREATE}'
        await waiting(one, session, content)
        one.child.kill()
        await one.child.wait()
    async with process(own_url, BEARINGS_LEASE_TTL="120") as two:
        before = await snapshot(two, session)
        kinds = await own_database.all(
            "SELECT call_id FROM pending_calls WHERE session_id = :id", {"id": session}
        )
        await post(two, session, "tool-results", {"tool_call_id": "call_1", "output": "x"})
        still = await snapshot(two, session)
        if still["status"] == "awaiting":
            await post(
                two, session, "confirmations", {"tool_call_id": "call_2", "decision": "approve"}
            )
        await until_idle(two.client, session)

    assert before["status"] == "awaiting"
    assert len(kinds) >= 1
    assert await violations(own_database, session) == []


async def test_a_reply_that_waits_is_stopped_and_its_calls_are_closed(
    service: Service, database: Database
) -> None:
    session = await service.session(await service.agent(**(ASKS | EXTERNAL)))
    await waiting(service, session, f'call TaskCreate {CREATE} Lookup {{"q": "a"}}')
    stopped = await service.client.post(f"/v1/sessions/{session}/interrupt")
    late = await post(
        service, session, "confirmations", {"tool_call_id": "call_1", "decision": "approve"}
    )
    await until_idle(service.client, session)
    log = await service.log(session)

    assert stopped.json()["status"] == "interrupted"
    assert problem(late, 409, "conflict")
    assert {state for state, _ in results(log).values()} == {"interrupted"}
    assert log[-1]["finished_reason"] == "interrupted"
    assert await violations(database, session) == []


@pytest.mark.parametrize("on_busy", ["enqueue", "interrupt", "rollback", "steer", "reject"])
async def test_a_message_to_a_reply_that_waits_follows_its_policy(
    service: Service, database: Database, on_busy: str
) -> None:
    session = await service.session(await service.agent(**ASKS))
    first = await waiting(service, session, f"call TaskCreate {CREATE}")
    sent = await service.client.post(
        f"/v1/sessions/{session}/messages", json={"content": "echo two", "on_busy": on_busy}
    )
    if on_busy in {"enqueue", "steer", "reject"}:
        assert (await snapshot(service, session))["status"] == "awaiting"
        await post(
            service, session, "confirmations", {"tool_call_id": "call_1", "decision": "approve"}
        )
    await until_idle(service.client, session)
    log = await service.log(session)
    ends = {e["reply_id"]: e["finished_reason"] for e in log if e["type"] == "REPLY_END"}
    context = (await service.client.get(f"/v1/sessions/{session}/state")).json()["context"]
    stopped = on_busy in {"interrupt", "rollback"}

    assert sent.status_code == (409 if on_busy == "reject" else 202)
    assert ends[first[0]["reply_id"]] == ("interrupted" if stopped else "completed")
    assert len(ends) == (1 if on_busy in {"steer", "reject"} else 2)
    assert any(block["type"] == "tool_call" for msg in context for block in msg["content"]) == (
        on_busy != "rollback"
    )
    if on_busy == "reject":
        assert problem(sent, 409, "session_busy")["reply_id"] == first[0]["reply_id"]
    assert await violations(database, session) == []


async def test_an_answer_with_a_key_is_taken_once(service: Service, database: Database) -> None:
    session = await service.session(await service.agent(**ASKS))
    await waiting(service, session, f"call TaskCreate {CREATE}")
    decision = {"tool_call_id": "call_1", "decision": "approve"}
    answers = await asyncio.gather(
        *[
            post(service, session, "confirmations", decision, **{"Idempotency-Key": "k"})
            for _ in range(10)
        ]
    )
    await until_idle(service.client, session)
    log = await service.log(session)

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert [event["type"] for event in log].count("USER_CONFIRM_RESULT") == 1
    assert await violations(database, session) == []


async def test_of_two_answers_at_once_one_is_taken(service: Service, database: Database) -> None:
    session = await service.session(await service.agent(**ASKS))
    await waiting(service, session, f"call TaskCreate {CREATE}")
    answers = await asyncio.gather(
        *[
            post(
                service,
                session,
                "confirmations",
                {"tool_call_id": "call_1", "decision": decision},
            )
            for decision in ("approve", "reject") * 5
        ]
    )
    await until_idle(service.client, session)

    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 9
    assert await violations(database, session) == []


@pytest.mark.parametrize(
    ("path", "result", "pointer"),
    [
        ("confirmations", {"decision": "maybe"}, "/results/0/decision"),
        ("confirmations", {"decision": "edit"}, "/results/0"),
        ("confirmations", {"decision": "approve", "input": {}}, "/results/0"),
        ("confirmations", {"decision": "respond", "message": " "}, "/results/0"),
        ("confirmations", {"decision": "approve", "rules": [{}]}, "/results/0/rules"),
        ("tool-results", {}, "/results/0/output"),
        ("tool-results", {"output": "x", "state": "denied"}, "/results/0/state"),
    ],
)
async def test_answers_that_make_no_sense_are_refused(
    service: Service, path: str, result: dict[str, Any], pointer: str
) -> None:
    session = await service.session(await service.agent(**ASKS))
    await waiting(service, session, f"call TaskCreate {CREATE}")
    answer = await post(service, session, path, {"tool_call_id": "call_1"} | result)
    twice = await post(
        service, session, "confirmations", *[{"tool_call_id": "x", "decision": "approve"}] * 2
    )
    none = await post(service, session, "confirmations")
    missing = await post(
        service, "ses_none", "confirmations", {"tool_call_id": "x", "decision": "approve"}
    )

    assert problem(answer, 422, "invalid_request")["errors"][0]["pointer"].startswith(pointer)
    assert problem(twice, 422, "invalid_request")["errors"][0]["pointer"] == "/results"
    assert problem(none, 422, "invalid_request")["errors"][0]["pointer"] == "/results"
    assert problem(missing, 404, "not_found")
    assert (await snapshot(service, session))["status"] == "awaiting"


async def test_only_what_a_tool_allows_may_be_decided(service: Service) -> None:
    allowed = {"interrupt_on": {"TaskCreate": {"allowed_decisions": ["approve", "reject"]}}}
    session = await service.session(await service.agent(**allowed))
    await waiting(service, session, f"call TaskCreate {CREATE}")
    answer = await post(
        service,
        session,
        "confirmations",
        {"tool_call_id": "call_1", "decision": "edit", "input": {"subject": "x"}},
    )

    assert problem(answer, 422, "invalid_request")["errors"] == [
        {"pointer": "/results/0/decision", "detail": "one of: approve, reject"}
    ]
    assert (await snapshot(service, session))["status"] == "awaiting"


async def test_sessions_that_wait_are_listed_as_such(service: Service) -> None:
    agent = await service.agent(**ASKS)
    session = await service.session(agent)
    other = await service.session(agent)
    await waiting(service, session, f"call TaskCreate {CREATE}")
    listed = await service.client.get(
        "/v1/sessions", params={"agent_id": agent, "status": "awaiting"}
    )
    idle = await service.client.get("/v1/sessions", params={"agent_id": agent, "status": "idle"})
    waited = await service.client.post(
        f"/v1/sessions/{other}/messages",
        json={"content": f"call TaskCreate {CREATE}"},
        headers={"Prefer": "wait=30"},
    )

    assert [each["id"] for each in listed.json()["data"]] == [session]
    assert [each["id"] for each in idle.json()["data"]] == [other]
    assert (waited.status_code, waited.json()["status"]) == (202, "awaiting")


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"interrupt_on": {"Nobody": True}}, "/interrupt_on/Nobody"),
        ({"tools": {"external": [LOOKUP | {"name": "TaskGet"}]}}, "/tools/external/0/name"),
        ({"tools": {"external": [LOOKUP, LOOKUP]}}, "/tools/external/1/name"),
        ({"tools": {"external": [LOOKUP | {"name": "a b"}]}}, "/tools/external/0/name"),
        (
            {"tools": {"external": [LOOKUP | {"parameters": {"type": "array"}}]}},
            "/tools/external/0/parameters",
        ),
        (
            {"tools": {"external": [LOOKUP | {"parameters": {"type": "object", "required": 3}}]}},
            "/tools/external/0/parameters",
        ),
    ],
)
async def test_definitions_that_cannot_work_are_refused(
    service: Service, spec: dict[str, Any], pointer: str
) -> None:
    answer = await service.client.post("/v1/agents", json={"name": "Friday"} | spec)

    assert problem(answer, 422, "invalid_request")["errors"][0]["pointer"] == pointer
