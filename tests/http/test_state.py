"""State over HTTP: read whole, imported whole, from here and from AgentScope."""

from typing import Any

import orjson
import pytest

from app.adapters.postgres.database import Database
from tests.http.problems import pointers, problem
from tests.http.test_messages import held
from tests.support.service import Service

CALL = {"type": "tool_call", "id": "t1", "name": "slow", "input": ""}
RESULT = {"type": "tool_result", "id": "t1", "name": "slow", "output": "old"}


def said(text: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"name": role, "role": role, "content": [{"type": "text", "text": text}]} | more


async def put(service: Service, session: str, state: Any, **headers: str) -> Any:
    return await service.client.put(
        f"/v1/sessions/{session}/state",
        json=state,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


async def test_a_state_moves_to_another_session_and_goes_on_there(service: Service) -> None:
    session, other = await service.session(), await service.session()
    await service.send(session, "plan it")
    read = await service.client.get(f"/v1/sessions/{session}/state")
    answer = await put(service, other, read.json())
    again = await service.client.get(f"/v1/sessions/{other}/state")
    begun = await service.session(state=read.json())
    third = (await service.client.get(f"/v1/sessions/{begun}/state")).json()
    tasks = (await service.client.get(f"/v1/sessions/{other}/tasks")).json()
    final = await service.send(other, "work")

    assert answer.status_code == 200
    assert answer.json() == again.json() == read.json() | {"session_id": other}
    assert third == read.json() | {"session_id": begun}
    assert len(tasks["tasks"]) == 3
    assert final["finished_reason"] == "completed"


async def test_an_import_can_insist_on_the_version_that_was_read(service: Service) -> None:
    session = await service.session()
    etag = (await service.client.get(f"/v1/sessions/{session}/state")).headers["etag"]
    taken = await put(service, session, {}, If_Match=etag)
    late = await put(service, session, {}, If_Match=etag)
    read = await service.client.get(f"/v1/sessions/{session}/state")

    assert taken.status_code == 200
    assert taken.headers["etag"] == read.headers["etag"] != etag
    problem(late, 412, "version_mismatch")
    assert pointers(await put(service, session, {}, If_Match="x")) == ["/header/If-Match"]


async def test_a_busy_session_takes_no_import(service: Service, database: Database) -> None:
    session = await service.session()
    async with held(database, session):
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "x"})
        answer = await put(service, session, {})

        problem(answer, 409, "session_busy")


async def test_fields_of_newer_versions_are_ignored(service: Service) -> None:
    session = await service.session()
    message = said("hi", future=1)
    message["content"][0]["future"] = {"a": None}
    answer = await put(service, session, {"context": [message], "future": [1], "reply_id": "r1"})
    state = (await service.client.get(f"/v1/sessions/{session}/state")).json()

    assert answer.status_code == 200
    assert state["reply_context"]["reply_id"] == "r1"
    assert "future" not in orjson.dumps(state).decode()


@pytest.mark.parametrize(
    ("state", "pointer"),
    [
        ([], ""),
        (None, ""),
        ({"context": 5}, "/context"),
        ({"context": [said("x"), {"name": "x", "role": "user"}]}, "/context/1/content"),
        ({"context": [said("x", role="robot")]}, "/context/0/role"),
        ({"context": [said("x") | {"content": [{"type": "x"}]}]}, "/context/0/content/0"),
        ({"context": [said(1)]}, "/context/0/content/0/text"),
        ({"tool_context": {"max_cache_bytes": "inf"}}, "/tool_context/max_cache_bytes"),
        ({"reply_context": {"cur_iter": "x"}}, "/reply_context/cur_iter"),
        ({"permission_context": {"mode": "root"}}, "/permission_context/mode"),
    ],
)  # fmt: skip
async def test_what_no_state_can_hold_is_pointed_at(
    service: Service, state: Any, pointer: str
) -> None:
    session = await service.session()

    assert pointers(await put(service, session, state)) == [pointer]
    assert await service.log(session) == []


async def test_RC_004_half_a_character_in_an_imported_result_does_not_block(  # noqa: N802
    service: Service,
) -> None:
    session = await service.session()
    call = {"type": "tool_call", "id": "t1", "name": "read_file", "input": '{"path":"/a"}'}
    result = {"type": "tool_result", "id": "t1", "name": "read_file", "state": "success"}
    body = {
        "context": [
            said("go"),
            said("", "assistant") | {"content": [call, result | {"output": "cut here HALF"}]},
            said("done", "assistant"),
        ]
    }
    answer = await service.client.put(
        f"/v1/sessions/{session}/state",
        content=orjson.dumps(body).replace(b"HALF", b"\\ud83d"),
        headers={"Content-Type": "application/json"},
    )
    state = (await service.client.get(f"/v1/sessions/{session}/state")).json()
    final = await service.send(session, "continue")

    assert answer.status_code == 200
    assert state["context"][1]["content"][1]["output"] == "cut here \ufffd"
    assert final["finished_reason"] == "completed"


@pytest.mark.parametrize(
    "context",
    [
        [said("go"), said("", "assistant") | {"content": [CALL]}, said("stopped", "assistant")],
        [said("", "assistant") | {"content": [RESULT]}, said("hi")],
        [said("", "assistant") | {"content": [CALL, RESULT, RESULT | {"id": "other"}]}],
        [said("", "assistant") | {"content": []}],
        [said("x") | {"content": []}] * 3,
    ],
)  # fmt: skip
async def test_RC_039_RC_040_a_mended_history_goes_on(service: Service, context: Any) -> None:  # noqa: N802
    session = await service.session()
    answer = await put(service, session, {"context": context})
    final = await service.send(session, "continue")

    assert answer.status_code == 200
    assert final["finished_reason"] == "completed"


async def test_RC_128_a_million_wrong_items_are_refused_without_counting_them(  # noqa: N802
    service: Service,
) -> None:
    session = await service.session()
    for body in (b'{"context":[%b]}', b'{"tasks_context":{"tasks":[%b]}}'):
        answer = await service.client.put(
            f"/v1/sessions/{session}/state",
            content=body % b",".join([b"1"] * 1_000_000),
            headers={"Content-Type": "application/json"},
        )

        assert len(pointers(answer)) == 1
