"""Copies of a conversation: of an idle one, of a part, and of one that is being written."""

import asyncio
from typing import Any

from app.adapters.postgres.database import Database
from tests.e2e.test_people import ASKS, CREATE, waiting
from tests.e2e.test_replicas import until_idle
from tests.http.problems import problem
from tests.support.checker import violations
from tests.support.service import Service


async def fork(service: Service, session: str, **body: Any):
    return await service.client.post(f"/v1/sessions/{session}/fork", json=body)


async def texts(service: Service, session: str) -> list[str]:
    page = (await service.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
    return ["".join(block.get("text", "") for block in message["content"]) for message in page]


async def test_a_copy_holds_the_conversation_and_goes_its_own_way(
    service: Service, database: Database
) -> None:
    session = await service.session(metadata={"a": 1}, environment={"place": "here"})
    await service.send(session, "plan a trip")
    await service.send(session, "echo two")
    answer = await fork(service, session, title="other", metadata={"b": 2})
    copy = answer.json()
    await service.send(copy["id"], "work")
    await service.send(session, "echo three")
    plans = [
        (await service.client.get(f"/v1/sessions/{each}/state")).json()["tasks_context"]["tasks"]
        for each in (session, copy["id"])
    ]

    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/sessions/{copy['id']}"
    assert (copy["title"], copy["metadata"], copy["status"]) == ("other", {"b": 2}, "idle")
    assert (await texts(service, session))[:4] == (await texts(service, copy["id"]))[:4]
    assert (await texts(service, copy["id"]))[4] == "work"
    assert [task["state"] for task in plans[0]] != [task["state"] for task in plans[1]]
    assert (await service.client.get(f"/v1/sessions/{copy['id']}/environment")).json() == {
        "place": "here"
    }
    for each in (session, copy["id"]):
        assert await violations(database, each) == []


async def test_a_copy_may_end_with_any_message(service: Service, database: Database) -> None:
    session = await service.session()
    first = await service.send(session, "echo one")
    await service.send(session, "echo two")
    page = (await service.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
    after_reply = (await fork(service, session, through_message_id=first["id"])).json()["id"]
    after_message = (await fork(service, session, through_message_id=page[2]["id"])).json()["id"]
    final = await service.send(after_reply, "echo other")

    assert await texts(service, after_message) == ["echo one", "one", "echo two"]
    assert await texts(service, after_reply) == ["echo one", "one", "echo other", "other"]
    assert final["finished_reason"] == "completed"
    assert await violations(database, after_reply) == []


async def test_a_session_that_waits_is_copied_with_its_calls_closed(
    service: Service, database: Database
) -> None:
    session = await service.session(await service.agent(**ASKS))
    await waiting(service, session, f"call TaskCreate {CREATE}")
    copy = (await fork(service, session)).json()
    still = (await service.client.get(f"/v1/sessions/{session}")).json()
    context = (await service.client.get(f"/v1/sessions/{copy['id']}/state")).json()["context"]
    final = await service.send(copy["id"], "echo on")

    assert still["status"] == "awaiting"
    assert (copy["status"], copy["pending_tool_calls"]) == ("idle", [])
    assert [
        block["state"] for block in context[-1]["content"] if block["type"] == "tool_result"
    ] == ["interrupted"]
    assert final["finished_reason"] == "completed"
    assert await violations(database, copy["id"]) == []


async def test_a_session_that_is_being_written_is_copied_and_not_disturbed(
    service: Service, database: Database
) -> None:
    session = await service.session()
    await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "long 3000"})
    copies = await asyncio.gather(*[fork(service, session) for _ in range(5)])
    await until_idle(service.client, session)
    for copy in copies:
        await service.send(copy.json()["id"], "echo on")
        assert await violations(database, copy.json()["id"]) == []

    assert await violations(database, session) == []


async def test_copies_of_what_is_not_there_are_refused(service: Service) -> None:
    session = await service.session()
    nothing = await fork(service, session, through_message_id="msg_none")
    nobody = await fork(service, "ses_none")
    wrong = await fork(service, session, what=1)

    assert problem(nothing, 422, "invalid_request")["errors"][0]["pointer"] == "/through_message_id"
    assert problem(nobody, 404, "not_found")
    assert problem(wrong, 422, "invalid_request")["errors"][0]["pointer"] == "/what"
