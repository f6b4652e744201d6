"""Sessions over HTTP: their life, and lists by everything that a list can be asked for."""

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from app.adapters.postgres.database import Database
from tests.http.problems import pointers, problem
from tests.support.service import Service


async def listed(service: Service, **params: Any) -> list[str]:
    answer = await service.client.get("/v1/sessions", params=params)
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["data"]]


async def test_a_session_is_created_whole_with_its_address(service: Service) -> None:
    agent = await service.agent()
    answer = await service.client.post(
        "/v1/sessions",
        json={
            "agent_id": agent,
            "title": "T",
            "metadata": {"a": [1, None, {"b": 1.5}]},
            "user_id": "u1",
            "environment": {"battery-level": "78%"},
        },
    )
    session = answer.json()
    environment = await service.client.get(f"{answer.headers['location']}/environment")
    read = await service.client.get(answer.headers["location"])

    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/sessions/{session['id']}"
    assert session["id"].startswith("ses_")
    assert (session["status"], session["last_seq"], session["queued"]) == ("idle", 0, 0)
    assert (session["agent_version"], session["user_id"]) == (1, "u1")
    assert session["metadata"] == {"a": [1, None, {"b": 1.5}]}
    assert environment.json() == {"battery-level": "78%"}
    assert read.json() == session


async def test_a_session_keeps_its_agents_version_unless_told_to_follow(service: Service) -> None:
    agent = await service.agent(name="One")
    pinned = await service.session(agent)
    following = await service.session(agent, agent_version="follow")
    await service.client.put(f"/v1/agents/{agent}", json={"name": "Two"})
    names = [(await service.send(each, "hello"))["name"] for each in (pinned, following)]

    assert names == ["One", "Two"]


async def test_a_session_without_an_agent_is_refused(service: Service) -> None:
    answer = await service.client.post("/v1/sessions", json={"agent_id": "agt_none"})

    problem(answer, 404, "not_found")


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"agent_id": "a\x00b"}, "/agent_id"),
        ({"agent_id": ""}, "/agent_id"),
        ({"user_id": "a\nb"}, "/user_id"),
        ({"title": "x" * 257}, "/title"),
        ({"metadata": {f"k{at}": 1 for at in range(65)}}, "/metadata"),
        ({"environment": {"tasks": "x"}}, "/environment/tasks"),
        ({"environment": {"a b": "x"}}, "/environment/a b"),
        ({"environment": {"a": None}}, "/environment/a"),
        ({"agent_version": 1}, "/agent_version"),
        ({"state": {"context": [{"role": "user"}]}}, "/state/context/0/name"),
        ({"state": []}, "/state"),
        ({"unknown": 1}, "/unknown"),
    ],
)
async def test_what_a_session_cannot_begin_with_is_pointed_at(
    service: Service, more: dict[str, Any], pointer: str
) -> None:
    body = {"agent_id": await service.agent()} | more

    assert pointer in pointers(await service.client.post("/v1/sessions", json=body))


async def test_title_and_metadata_change_and_the_rest_stays(service: Service) -> None:
    session = await service.session(title="Old", metadata={"a": 1})
    path = f"/v1/sessions/{session}"
    before = (await service.client.get(path)).json()
    titled = (await service.client.patch(path, json={"title": "New"})).json()
    marked = (await service.client.patch(path, json={"metadata": {}})).json()

    assert (titled["title"], titled["metadata"]) == ("New", {"a": 1})
    assert (marked["title"], marked["metadata"]) == ("New", {})
    assert titled | {"title": "Old", "updated_at": before["updated_at"]} == before
    assert pointers(await service.client.patch(path, json={"agent_id": "x"})) == ["/agent_id"]


async def test_lists_are_filtered_by_agent_user_metadata_and_status(service: Service) -> None:
    agent, user = await service.agent(), uuid4().hex
    plain = await service.session(agent)
    marked = await service.session(agent, user_id=user, metadata={"project": "x", "n": {"a": 1}})

    assert await listed(service, agent_id=agent) == [marked, plain]
    assert await listed(service, user_id=user) == [marked]
    assert await listed(service, agent_id=agent, metadata='{"project":"x"}') == [marked]
    assert await listed(service, agent_id=agent, metadata='{"n":{"a":1}}') == [marked]
    assert await listed(service, agent_id=agent, metadata='{"project":"y"}') == []
    assert await listed(service, agent_id=agent, metadata="{}") == [marked, plain]
    assert await listed(service, agent_id=agent, status="idle") == [marked, plain]
    assert await listed(service, agent_id=agent, status="awaiting") == []
    assert await listed(service, agent_id="agt_none") == []


async def test_a_session_that_waits_for_its_turn_is_listed_as_queued(
    service: Service, database: Database
) -> None:
    agent = await service.agent()
    session = await service.session(agent)
    await database.run(
        "UPDATE sessions SET lease_until = clock_timestamp() + interval '1 hour' WHERE id = :id",
        {"id": session},
    )
    await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "x"})
    queued = await listed(service, agent_id=agent, status="queued")
    idle = await listed(service, agent_id=agent, status="idle")
    await service.client.delete(f"/v1/sessions/{session}")

    assert (queued, idle) == ([session], [])


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "1", "null", '{"a":', '{"a":NaN}', '{"a":1e400}', '{"\\u0000":1}',
     '{"a":' + "[" * 500 + "]" * 500 + "}", '{"a":' + "9" * 100 + "}", "{" * 4097],
)  # fmt: skip
async def test_a_metadata_filter_that_is_no_object_is_refused(service: Service, text: str) -> None:
    answer = await service.client.get("/v1/sessions", params={"metadata": text})

    assert pointers(answer) == ["/query/metadata"]


async def test_RC_070_the_same_instant_in_any_offset_filters_the_same(service: Service) -> None:  # noqa: N802
    agent = await service.agent()
    session = await service.session(agent)
    created = (await service.client.get(f"/v1/sessions/{session}")).json()["created_at"]
    moment = datetime.fromisoformat(created) + timedelta(milliseconds=1)
    east = moment.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()
    west = moment.astimezone(timezone(-timedelta(hours=9, minutes=30))).isoformat()
    zulu = moment.isoformat().replace("+00:00", "Z")
    for spelling in (zulu, east, west):
        assert await listed(service, agent_id=agent, created_before=spelling) == [session]
        assert await listed(service, agent_id=agent, created_after=spelling) == []
    for name in ("created_after", "created_before"):
        answer = await service.client.get("/v1/sessions", params={name: "2026-07-01T12:00:00"})

        assert pointers(answer) == [f"/query/{name}"]


@pytest.mark.parametrize(
    "moment", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "yesterday", "1e400", ""]
)
async def test_a_time_that_is_none_is_refused(service: Service, moment: str) -> None:
    answer = await service.client.get("/v1/sessions", params={"created_after": moment})

    assert pointers(answer) == ["/query/created_after"]


async def test_the_earliest_and_latest_times_are_taken(service: Service) -> None:
    agent = await service.agent()
    session = await service.session(agent)
    first, last = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"

    assert await listed(service, agent_id=agent, created_after=first) == [session]
    assert await listed(service, agent_id=agent, created_before=last) == [session]


async def test_the_same_key_begins_one_session(service: Service) -> None:
    agent = await service.agent()
    headers = {"Idempotency-Key": uuid4().hex}
    answers = await asyncio.gather(
        *[
            service.client.post("/v1/sessions", json={"agent_id": agent}, headers=headers)
            for _ in range(5)
        ]
    )

    assert {answer.status_code for answer in answers} == {201}
    assert await listed(service, agent_id=agent) == [answers[0].json()["id"]]


async def test_a_deleted_session_is_gone_everywhere(service: Service) -> None:
    session = await service.session()
    await service.send(session, "hello")
    path = f"/v1/sessions/{session}"
    assert (await service.client.delete(path)).status_code == 204

    for method, part, body in [
        ("GET", "", None), ("PATCH", "", {}), ("DELETE", "", None), ("GET", "/messages", None),
        ("POST", "/messages", {"content": "x"}), ("GET", "/events", None), ("GET", "/replies", None),
        ("GET", "/replies/x", None), ("POST", "/interrupt", None), ("GET", "/state", None),
        ("PUT", "/state", {}), ("GET", "/tasks", None), ("GET", "/environment", None),
        ("PUT", "/environment", {}),
    ]:  # fmt: skip
        answer = await service.client.request(method, path + part, json=body)

        problem(answer, 404, "not_found")
