"""Agents over HTTP: definitions, versions, lists."""

import asyncio
from uuid import uuid4

import pytest

from tests.http.problems import pointers, problem
from tests.support.service import Service


async def test_an_agent_is_created_whole_with_its_address_and_version(service: Service) -> None:
    answer = await service.client.post("/v1/agents", json={"name": "Friday"})
    agent = answer.json()
    read = await service.client.get(answer.headers["location"])

    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/agents/{agent['id']}"
    assert answer.headers["etag"] == read.headers["etag"] == '"1"'
    assert agent["id"].startswith("agt_")
    assert agent["react"]["max_iters"] == 50
    assert agent["created_at"].endswith("Z")
    assert read.json() == agent


async def test_a_replacement_is_a_new_version_and_the_old_one_stays(service: Service) -> None:
    agent = await service.agent(name="One")
    answer = await service.client.put(f"/v1/agents/{agent}", json={"name": "Two"})
    first = await service.client.get(f"/v1/agents/{agent}", params={"version": 1})
    versions = (await service.client.get(f"/v1/agents/{agent}/versions")).json()["data"]
    missing = await service.client.get(f"/v1/agents/{agent}", params={"version": 3})

    assert (answer.json()["version"], answer.headers["etag"]) == (2, '"2"')
    assert (first.json()["name"], first.json()["version"]) == ("One", 1)
    assert [each["name"] for each in versions] == ["Two", "One"]
    problem(missing, 404, "not_found")


async def test_a_replacement_can_insist_on_the_version_that_was_read(service: Service) -> None:
    path = f"/v1/agents/{await service.agent()}"
    for etag, status in [
        ('"1"', 200),
        ('"1"', 412),
        ('W/"2"', 200),
        ("*", 200),
        ('"9999999999"', 412),
    ]:
        answer = await service.client.put(path, json={"name": "x"}, headers={"If-Match": etag})

        assert answer.status_code == status, etag
    problem(answer, 412, "version_mismatch")


@pytest.mark.parametrize("etag", ["", "abc", '"x"', '"-1"', "1" * 30, '"1", "2"'])
async def test_an_etag_that_was_never_given_is_refused(service: Service, etag: str) -> None:
    path = f"/v1/agents/{await service.agent()}"
    answer = await service.client.put(path, json={"name": "x"}, headers={"If-Match": etag})

    assert pointers(answer) == ["/header/If-Match"]


async def test_replacements_at_once_get_versions_of_their_own(service: Service) -> None:
    path = f"/v1/agents/{await service.agent()}"
    answers = await asyncio.gather(
        *[service.client.put(path, json={"name": f"n{at}"}) for at in range(10)]
    )

    assert sorted(answer.json()["version"] for answer in answers) == list(range(2, 12))


async def test_a_deleted_agent_is_gone_and_its_sessions_go_on(service: Service) -> None:
    agent = await service.agent()
    session = await service.session(agent)
    path = f"/v1/agents/{agent}"
    deleted = await service.client.delete(path)
    again = await service.client.delete(path)
    gone = [
        await service.client.get(path),
        await service.client.put(path, json={"name": "x"}),
        await service.client.get(f"{path}/versions"),
        await service.client.post("/v1/sessions", json={"agent_id": agent}),
        again,
    ]
    final = await service.send(session, "hello")

    assert (deleted.status_code, deleted.content) == (204, b"")
    for answer in gone:
        problem(answer, 404, "not_found")
    assert final["finished_reason"] == "completed"


async def test_lists_are_paged_newest_first_without_loss(service: Service) -> None:
    agents = [await service.agent() for _ in range(5)]
    for _ in range(4):
        await service.client.put(f"/v1/agents/{agents[0]}", json={"name": "x"})
    for path, expected in [
        ("/v1/agents", agents[::-1]),
        (f"/v1/agents/{agents[0]}/versions", [5, 4, 3, 2, 1]),
    ]:
        found, cursor = [], None
        while len(found) < 5:
            params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = (await service.client.get(path, params=params)).json()
            found += [each["id" if path == "/v1/agents" else "version"] for each in page["data"]]
            cursor = page["next_cursor"]

        assert found[:5] == expected
    assert cursor is None


async def test_a_cursor_of_another_list_is_refused(service: Service) -> None:
    agent = await service.agent()
    await service.client.put(f"/v1/agents/{agent}", json={"name": "x"})
    session = await service.session(agent)
    await service.session(agent)
    await service.send(session, "one")
    await service.send(session, "two")
    paths = [
        "/v1/agents",
        "/v1/sessions",
        f"/v1/agents/{agent}/versions",
        f"/v1/sessions/{session}/messages",
        f"/v1/sessions/{session}/replies",
    ]
    cursors = [
        (await service.client.get(path, params={"limit": 1})).json()["next_cursor"]
        for path in paths
    ]
    for path, own in zip(paths, cursors, strict=True):
        for cursor in cursors:
            answer = await service.client.get(path, params={"cursor": cursor})

            assert answer.status_code == (200 if cursor == own else 422), (path, cursor)
            assert cursor == own or pointers(answer) == ["/query/cursor"]


@pytest.mark.parametrize(
    "cursor", ["", "x", "!!!", "é", "AAAA", "YWdlbnRzOgA=", "dmVyc2lvbnM6OTk5", "-" * 513]
)
async def test_a_cursor_that_was_never_given_is_refused(service: Service, cursor: str) -> None:
    answer = await service.client.get("/v1/agents", params={"cursor": cursor})

    assert pointers(answer) == ["/query/cursor"] or cursor == "YWdlbnRzOgA="
    assert answer.status_code == 422


async def test_the_same_key_makes_one_agent(service: Service) -> None:
    headers, body = {"Idempotency-Key": uuid4().hex}, {"name": "Once"}
    answers = await asyncio.gather(
        *[service.client.post("/v1/agents", json=body, headers=headers) for _ in range(5)]
    )
    other = await service.client.post("/v1/agents", json={"name": "Other"}, headers=headers)

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 4
    problem(other, 422, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "é".encode("latin-1")])
async def test_a_key_that_cannot_be_one_is_refused(service: Service, key: str) -> None:
    answer = await service.client.post(
        "/v1/agents", json={"name": "x"}, headers={"Idempotency-Key": key}
    )

    assert pointers(answer) == ["/header/Idempotency-Key"]


async def test_a_request_that_was_refused_does_not_use_its_key_up(service: Service) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    refused = await service.client.post("/v1/agents", json={}, headers=headers)
    made = await service.client.post("/v1/agents", json={"name": "x"}, headers=headers)

    assert (refused.status_code, made.status_code) == (422, 201)


@pytest.mark.parametrize(
    "zone", ["Mars/Base", "", "../../etc/passwd", "UTC+25", "/etc/localtime", "\x00", "z" * 5000]
)
async def test_RC_073_a_time_zone_that_is_none_is_refused(service: Service, zone: str) -> None:  # noqa: N802
    body = {"name": "x", "injection": {"timezone": zone}}

    assert pointers(await service.client.post("/v1/agents", json=body)) == ["/injection/timezone"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://2852039166/",
        "http://[::ffff:169.254.169.254]/",
        "http://127.1:5432/",
        "http://0.0.0.0:8000/",
        "http://localhost/",
        "http://[::1]/",
        "http://[::1",
        "http://user@127.0.0.1/",
        "http://100.64.0.1/",
        "http://127.0.0.1:99999/",
        "http://" + "a" * 300 + "/",
        "http://",
        "file:///etc/passwd",
        "gopher://x",
    ],
)
async def test_RC_123_a_model_at_a_private_address_is_refused(service: Service, url: str) -> None:  # noqa: N802
    model = {"provider": "openai", "name": "x", "base_url": url}
    for field in ("model", "fallback_model"):
        answer = await service.client.post("/v1/agents", json={"name": "x", field: model})

        assert pointers(answer) == [f"/{field}/base_url"]


async def test_an_interval_without_end_can_be_read_again(service: Service) -> None:
    agent = await service.agent(injection={"time_interval": "Infinity"})
    read = (await service.client.get(f"/v1/agents/{agent}")).json()
    again = await service.client.post(
        "/v1/agents", json={"name": "y", "injection": read["injection"]}
    )

    assert read["injection"]["time_interval"] == "Infinity"
    assert again.json()["injection"] == read["injection"]


@pytest.mark.parametrize(
    "name", ["", " ", "x" * 129, "a\nevent: REPLY_END", "a\x00b", "\x01", "\ud800"]
)
async def test_RC_017_a_name_that_could_break_a_frame_is_refused(  # noqa: N802
    service: Service, name: str
) -> None:
    body = b'{"name": "%b"}' % name.encode("unicode_escape").replace(b"\\x", b"\\u00")
    answer = await service.client.post(
        "/v1/agents", content=body, headers={"Content-Type": "application/json"}
    )

    assert pointers(answer) == ["/name"]


async def test_the_tools_that_an_agent_may_name_are_listed(service: Service) -> None:
    groups = (await service.client.get("/v1/tools")).json()["data"]
    tasks = next(group for group in groups if group["name"] == "tasks")

    assert {"TaskCreate", "TaskUpdate"} <= {tool["name"] for tool in tasks["tools"]}
