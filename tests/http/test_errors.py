"""Every error is a problem document that says what to do and repeats nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.core.errors import Fenced, Unavailable
from app.http import errors
from app.http.guard import Guard
from tests.http.problems import pointers, problem
from tests.support.service import Service

SECRET = "sk-CANARY-123"


async def test_an_unknown_address_is_a_problem(service: Service) -> None:
    answer = await service.client.get("/v1/nothing", headers={"X-Request-Id": "mine-1"})

    found = problem(answer, 404, "not_found")
    assert (found["instance"], found["request_id"]) == ("/v1/nothing", "mine-1")


@pytest.mark.parametrize("given", ["", "a b", "x" * 200, "é".encode("latin-1")])
async def test_a_request_id_that_is_none_is_replaced(service: Service, given: str) -> None:
    answer = await service.client.get("/v1/nothing", headers={"X-Request-Id": given})

    assert problem(answer, 404, "not_found")["request_id"].startswith("req_")


async def test_an_answer_that_is_no_error_carries_the_request_id_too(service: Service) -> None:
    answer = await service.client.get("/healthz", headers={"X-Request-Id": "mine-2"})

    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine-2")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/agents", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/v1/agents/x", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PATCH", "/v1/sessions/x/state", "GET, HEAD, OPTIONS, PUT"),
        ("GET", "/v1/sessions/x/interrupt", "OPTIONS, POST"),
        ("TRACE", "/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_method_that_is_not_possible_is_told_which_are(
    service: Service, method: str, path: str, allowed: str
) -> None:
    answer = await service.client.request(method, path)

    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


async def test_options_tells_the_methods(service: Service) -> None:
    answer = await service.client.options("/v1/sessions")

    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"


async def test_head_is_get_without_its_body(service: Service) -> None:
    session = await service.session()
    paths = ["/healthz", f"/v1/sessions/{session}", f"/v1/sessions/{session}/events", "/v1/agents"]
    answers = [await service.client.head(path) for path in paths]
    missing = await service.client.head("/v1/sessions/none")

    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 4
    assert answers[2].headers["content-type"].startswith("text/event-stream")
    assert (missing.status_code, missing.content) == (404, b"")


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_body_that_is_not_json_is_refused(service: Service, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await service.client.post("/v1/agents", content=b'{"name": "x"}', headers=headers)

    problem(answer, 415, "unsupported_media_type")


async def test_a_compressed_body_is_refused_unread(service: Service) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await service.client.post("/v1/agents", content=b"\x1f\x8b", headers=headers)

    problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_more_than_10_mib_is_refused(service: Service, *, chunked: bool) -> None:
    session = await service.session()
    body = b'{"content": "' + b"x" * 10 * 1024 * 1024 + b'"}'

    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(body), 65536):
            yield body[at : at + 65536]

    answer = await service.client.post(
        f"/v1/sessions/{session}/messages",
        content=pieces() if chunked else body,
        headers={"Content-Type": "application/json"},
    )

    problem(answer, 413, "body_too_large")
    assert await service.log(session) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ["/name"]),
        ({"name": "x", "nmae": "y"}, ["/nmae"]),
        ({"name": "x", "react": {"max_iters": 0, "a/b~c": 1}}, ["/react/max_iters", "/react/a~1b~0c"]),
        ({"name": "x", "injection": {"trigger_fields": ["a b"]}}, ["/injection/trigger_fields/0"]),
        ({"name": "x", "model": {"provider": "scripted"}}, ["/model/name"]),
        ({"name": "x", "tools": {"builtin": ["tasks", "magic"]}}, ["/tools/builtin/1"]),
        ([], [""]),
        (None, [""]),
        ("x", [""]),
    ],
)  # fmt: skip
async def test_errors_point_into_the_body(
    service: Service, body: object, expected: list[str]
) -> None:
    answer = await service.client.post("/v1/agents", json=body)

    assert pointers(answer) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, {"/content"}),
        ([], {"/content"}),
        ([{"type": "text"}], {"/content/0/text", "/content"}),
        ([{"type": "text", "text": 5}], {"/content/0/text", "/content"}),
        ([{"type": "hint", "hint": "x"}], {"/content/0", "/content"}),
        (
            [{"type": "data", "source": {"type": "url", "url": 1, "media_type": "x"}}],
            {"/content/0/source/url", "/content"},
        ),
    ],
)
async def test_branches_of_unions_are_no_part_of_a_pointer(
    service: Service, content: object, expected: set[str]
) -> None:
    session = await service.session()
    answer = await service.client.post(
        f"/v1/sessions/{session}/messages", json={"content": content}
    )

    assert set(pointers(answer)) == expected


async def test_a_request_without_a_body_is_told_so(service: Service) -> None:
    assert pointers(await service.client.post("/v1/agents")) == [""]


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/agents?limit=0", "/query/limit"),
        ("/v1/agents?limit=201", "/query/limit"),
        ("/v1/agents?limit=abc", "/query/limit"),
        ("/v1/agents?limit=9999999999999999999999", "/query/limit"),
        ("/v1/agents?cursor=!!!", "/query/cursor"),
        ("/v1/sessions?status=asleep", "/query/status"),
    ],
)
async def test_errors_point_into_the_query(service: Service, path: str, pointer: str) -> None:
    assert pointers(await service.client.get(path)) == [pointer]


@pytest.mark.parametrize(
    "body",
    [
        {"name": {"key": SECRET}},
        {"name": "x", "model": SECRET},
        {"name": "x", "model": {"provider": SECRET, "name": SECRET, "context_size": SECRET}},
        {"name": "x", "model": {"provider": "openai", "name": "x", "base_url": f"ftp://{SECRET}"}},
        {"name": "x", "model": {"provider": "openai", "name": "x", "base_url": f"http://[{SECRET}"}},
        {"name": "x", "injection": {"timezone": SECRET, "time_format": SECRET}},
        {"name": "x", "injection": {"template": SECRET, "time_interval": SECRET}},
        {"name": "x", "tools": {"builtin": [SECRET]}},
        {"name": "x", "context": {"reserve_ratio": SECRET}},
        {"agent_id": [SECRET], "state": {"context": [{"role": SECRET, "content": SECRET}]}},
        {"agent_id": "x", "state": {"context": [{"content": [{"type": SECRET}]}]}},
        {"agent_id": "x", "metadata": SECRET, "environment": {"a": [SECRET], "tasks": SECRET}},
        {"content": [{"type": SECRET, "text": SECRET}], "max_iters": SECRET, "on_busy": SECRET},
    ],
)  # fmt: skip
async def test_RC_124_no_error_repeats_what_was_sent(  # noqa: N802
    service: Service, body: dict[str, Any]
) -> None:
    session = await service.session()
    targets = [
        ("POST", "/v1/agents"),
        ("POST", "/v1/sessions"),
        ("POST", f"/v1/sessions/{session}/messages"),
        ("PUT", f"/v1/sessions/{session}/environment"),
        ("PATCH", f"/v1/sessions/{session}"),
    ]
    answers = [await service.client.request(*target, json=body) for target in targets]
    answers.append(
        await service.client.put(f"/v1/sessions/{session}/state", json=body.get("state", "x"))
    )

    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} <= {404, 422}
    assert SECRET not in "".join(answer.text for answer in refused)


async def test_ten_thousand_errors_make_a_short_answer(service: Service) -> None:
    body = {"name": "x"} | {f"{at}" * 100: at for at in range(9_000)}
    found = problem(await service.client.post("/v1/agents", json=body), 422, "invalid_request")

    assert len(found["errors"]) == 100
    assert max(len(each["pointer"]) for each in found["errors"]) <= 200


@asynccontextmanager
async def failing() -> AsyncGenerator[httpx.AsyncClient, None]:
    """An application whose routes fail, behind the same gate and handlers."""
    app = FastAPI()
    errors.install(app)
    app.add_middleware(Guard, new_id=lambda kind: f"{kind}_1")

    @app.get("/mistake")
    async def mistake() -> None:
        raise RuntimeError(f"SELECT {SECRET}")

    @app.get("/busy")
    async def busy() -> None:
        raise Unavailable(retry_after_seconds=7)

    @app.get("/fenced")
    async def fenced() -> None:
        raise Fenced

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_a_mistake_of_ours_is_a_problem_that_tells_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with failing() as client:
        answer = await client.get("/mistake", headers={"X-Request-Id": "mine"})

    found = problem(answer, 500, "internal")
    assert found["request_id"] == "mine"
    assert SECRET not in answer.text
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "seconds"), [("/busy", "7"), ("/fenced", "1")])
async def test_a_service_that_cannot_now_says_when_to_come_back(path: str, seconds: str) -> None:
    async with failing() as client:
        answer = await client.get(path)

    problem(answer, 503, path[1:].replace("busy", "unavailable"))
    assert answer.headers["retry-after"] == seconds


async def test_a_client_that_goes_away_while_it_sends_changes_nothing(service: Service) -> None:
    session = await service.session()
    host, port = service.client.base_url.host, service.client.base_url.port
    _, writer = await asyncio.open_connection(host, port)
    body = b'{"content": "half a request"}'
    writer.write(
        f"POST /v1/sessions/{session}/messages HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body) + 1}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await service.send(session, "a whole one")
    texts = [
        event["message"]["content"][0]["text"]
        for event in await service.log(session)
        if event["type"] == "MESSAGE_RECEIVED"
    ]

    assert texts == ["a whole one"]


async def test_the_description_names_every_error_and_every_media_type(service: Service) -> None:
    document = (await service.client.get("/openapi.json")).json()
    operations = [each for path in document["paths"].values() for each in path.values()]

    assert all("default" in operation["responses"] for operation in operations)
    assert not any("422" in operation["responses"] for operation in operations)
    assert all(
        list(response["content"]) == ["application/problem+json"]
        for operation in operations
        for status, response in operation["responses"].items()
        if status[0] in "45"
    )
    events = document["paths"]["/v1/sessions/{session_id}/events"]["get"]["responses"]["200"]
    assert set(events["content"]) == {"application/json", "text/event-stream"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


async def test_readiness_and_liveness_are_told(service: Service) -> None:
    alive = await service.client.get("/healthz")
    ready = await service.client.get("/readyz")

    assert (alive.json(), ready.json()) == ({"status": "ok"}, {"status": "ok"})


async def test_the_description_says_of_fields_what_their_code_says(service: Service) -> None:
    schemas = (await service.client.get("/openapi.json")).json()["components"]["schemas"]
    said = {
        (name, field): schemas[name]["properties"][field].get("description", "")
        for name, field in (
            ("Accepted", "after_seq"),
            ("Agent", "model"),
            ("ToolCallBlock", "input"),
        )
    }

    assert said["Accepted", "after_seq"] == "Events of this reply have larger numbers."
    assert said["ToolCallBlock", "input"].startswith("The arguments")
    # Inherited from the definition.
    assert said["Agent", "model"] == schemas["AgentSpec"]["properties"]["model"]["description"]
