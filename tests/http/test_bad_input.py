"""Whatever comes in, the answer is no 5xx, an error is a problem document, and nothing is half done."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from typing import Any

import httpx
import pytest

from tests.http.problems import MEMBERS
from tests.support.service import Service

JSON = {"Content-Type": "application/json"}
DEEP = 70
VALUES = [
    b'"\\u0000"', b'"a\\u0000b"', b'"\\ud83d"', b'"\\ude00\\ud83d"', b'"\\ud83d\\ude00"', b'""',
    b"NaN", b"Infinity", b"-Infinity", b'"NaN"', b'"Infinity"', b"1e400", b"-1e400", b"1e100000",
    b"9" * 300, b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809", b"1e308",
    b"-0.0", b"0", b"-1", b"1.5", b"1", b"2147483648", b"true", b"null", b"[]", b"{}", b"[[[[]]]]",
    b'{"\\u0000":1}', b'{"\\ud800":1}', b'{"__proto__":{"x":1}}', b'{"type":"text"}',
    b'{"type":"\\u0000"}', b'"2026-13-45T99:99:99Z"', b'"\'; DROP TABLE sessions; --"',
    '"\u202eRTL \u05d0\u0645 \ufeff\u2028\u2029"'.encode(), b'"\\r\\nevent: x\\ndata: {}"',
    b'"{count!x} {0} %n"', b'"../../etc/passwd"', b"[" * DEEP + b"]" * DEEP,
]  # fmt: skip
BIG = [
    b'"\xff\xfe"', b'"\xed\xa0\x80"', b"9" * 5000, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"{", b"",
    b"[" * 300 + b"]" * 300, b"[" * 100_000 + b"]" * 100_000, b'"' + b"x" * 100_000 + b'"', b"nan",
]  # fmt: skip
BODIES = [
    *VALUES, *BIG, b"\x00", b"\xef\xbb\xbf{}", b"{}{}", b"[1,]", b'{"a":1,"a":2}',
    b"\xff\xfe{\x00}\x00", b'{"name":"x","name":{}}', b'{"' + b"k" * 1_000_000 + b'":1}',
    b"[" + b"1," * 300_000 + b"1]",
    b"{%b}" % b",".join(b'"k%d":1' % at for at in range(20_000)),
]  # fmt: skip
IDS = [
    "%00", "a%00b", "%ff", "%ED%A0%80", "%F0%9F%98%80", "..%2f..%2f", "%2e%2e", "%0a", "%0d%0aX: y",
    "%20", "%25", "%", "%zz", "'%20OR%201=1--", "a" * 5000, "ses_0", "ses_" + "0" * 32, "0", "-1", "*",
    "9" * 5000, "null", "~", "%E2%80%AE", "é", "😀", "[::1", "a;b=c", "a?b", "a#b", "{session_id}",
]  # fmt: skip
QUERIES = [
    "", "%00", "%ff", "%ED%A0%80", "\U0001f600", "-1", "0", "1", "201", "abc", "1.0", "1e9", "1e400",
    "NaN", "inf", "9" * 20, "9" * 5000, "2147483648", "9223372036854775808", "true", "[]", "{}", "null",
    "a" * 5000, "'", "\u0663", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00%2B23:59", "2026-07-01",
    "1e18", "-1e18", "idle", "AAAA", "=", '{"a":' * 60 + "1" + "}" * 60, '{"a":"%5Cu0000"}',
    '{"a":"%5Cud800"}', '{"%5Cud800":1}', '{"a":1e308}',
]  # fmt: skip
HEADERS: list[str | bytes] = [
    "", "x", b"\xff\xfe", b"\xc3\xa9", "9" * 20, "9" * 5000, "-1", "1e9", "NaN", '"', '""', '"1', "*",
    "W/", ",,,", ";;;", "=", "wait=", "wait=" + "9" * 5000, "wait=-1", "a/b;q=1e400", "*/*;q=nan",
    "application/json;q=0", "application/json; charset=utf-16", "a" * 5000, "%00", "bytes=0-",
]  # fmt: skip
HEADER_NAMES = [
    "Idempotency-Key", "If-Match", "Prefer", "Accept", "Last-Event-ID", "X-Request-Id", "Content-Type",
    "Content-Encoding", "Host", "Origin", "Range", "Cookie", "Authorization",
]  # fmt: skip


def no_mistake(answer: httpx.Response, sent: object) -> None:
    """Check that an answer is a success or a problem document, and no fault of ours."""
    told = f"{answer.request.method} {str(answer.request.url)[:200]} {str(sent)[:200]}"
    assert answer.status_code < 500, f"{told}: {answer.text[:500]}"
    assert answer.headers["x-request-id"], told
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        assert answer.headers["content-type"] == "application/problem+json", told
        found = answer.json()
        assert list(found)[:7] == MEMBERS, told
        assert len(answer.content) < 70_000, told


async def each(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """Do a lot, twenty at a time."""
    gate = asyncio.Semaphore(20)

    async def one(job: Awaitable[Any]) -> Any:
        async with gate:
            return await job

    return await asyncio.gather(*map(one, work))


async def ask(
    service: Service,
    method: str,
    path: str,
    content: bytes | AsyncGenerator[bytes, None] | None = None,
    headers: dict[str, Any] | None = None,
) -> httpx.Response:
    """Ask without encoding anything, and read no stream that might not end."""
    request = service.client.build_request(
        method, "/", content=content, headers=JSON | (headers or {})
    )
    target = "".join(char if char.isascii() else f"%{ord(char) % 256:02x}" for char in path)
    request.extensions["target"] = target.replace(" ", "%20").encode()
    answer = await service.client.send(request, stream=True)
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        await answer.aread()
    await answer.aclose()
    no_mistake(answer, (path, headers, content if isinstance(content, bytes) else ""))
    return answer


async def still_good(service: Service, session: str) -> None:
    """Check that everything of a session can be read, and that it answers a message."""
    final = await service.send(session, "hello")
    assert final["finished_reason"] == "completed"
    log = await service.log(session)
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    for part in ("", "/messages", "/state", "/environment", "/replies", "/tasks"):
        answer = await service.client.get(f"/v1/sessions/{session}{part}", params={"limit": 200})
        assert answer.status_code == 200, (part, answer.text)
        json.loads(answer.text, parse_constant=pytest.fail)
    state = await service.client.get(f"/v1/sessions/{session}/state")
    again = await service.client.put(
        f"/v1/sessions/{session}/state", content=state.content, headers=JSON
    )
    assert again.status_code == 200, again.text  # fmt: skip


async def lists_good(service: Service) -> None:
    """Check that everything that was ever made can be listed."""
    for path in ("/v1/agents", "/v1/sessions"):
        cursor: str | None = ""
        while cursor is not None:
            params = {"limit": 200} | ({"cursor": cursor} if cursor else {})
            answer = await service.client.get(path, params=params)
            assert answer.status_code == 200, answer.text
            cursor = answer.json()["next_cursor"]


def fields(schema: Any, document: Any, depth: int = 0) -> Iterator[tuple[str | int, ...]]:
    """Walk every place that a schema names."""
    if depth > 5:
        return
    if name := schema.get("$ref"):
        yield from fields(
            document["components"]["schemas"][name.rpartition("/")[2]], document, depth
        )
    for branch in schema.get("anyOf", []) + schema.get("oneOf", []):
        yield from fields(branch, document, depth)
    inside: list[tuple[str | int, Any]] = [*schema.get("properties", {}).items()]
    inside += [("key", each) for each in schema.get("patternProperties", {}).values()]
    inside += [("key", schema.get("additionalProperties")), (0, schema.get("items"))]
    for name, inner in inside:
        if isinstance(inner, dict):
            yield (name,)
            for rest in fields(inner, document, depth + 1):
                yield (name, *rest)


TYPES = {"text": "text", "thinking": "thinking", "hint": "hint", "source": "data", "input": "tool_call",
         "output": "tool_result", "data": "base64", "url": "url"}  # fmt: skip


def body_with(base: dict[str, Any], path: tuple[str | int, ...], value: bytes) -> bytes:
    """Write a body that is right but for one place."""

    def build(at: Any, rest: tuple[str | int, ...]) -> Any:
        if not rest:
            return "\u0001HERE\u0001"
        head, *tail = rest
        if isinstance(head, int):
            return [build({}, tuple(tail))]
        whole = dict(at) if isinstance(at, dict) else {}
        if head in TYPES and not whole:
            whole["type"] = TYPES[head]
        return whole | {head: build(whole.get(head), tuple(tail))}

    text = json.dumps(build(base, path)).encode()
    return text.replace(b'"\\u0001HERE\\u0001"', value)


async def document(service: Service) -> Any:
    return (await service.client.get("/openapi.json")).json()


async def operations(service: Service) -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, methods in (await document(service))["paths"].items()
        for method, operation in methods.items()
    ]


async def bases(service: Service) -> dict[str, dict[str, Any]]:
    """A right body for every operation that takes one."""
    return {
        "POST /v1/agents": {"name": "x"},
        "PUT /v1/agents/{agent_id}": {"name": "x"},
        "POST /v1/sessions": {"agent_id": await service.agent()},
        "PATCH /v1/sessions/{session_id}": {},
        "POST /v1/sessions/{session_id}/messages": {"content": "hello"},
        "PUT /v1/sessions/{session_id}/state": {},
        "PUT /v1/sessions/{session_id}/environment": {},
    }


async def filled(service: Service, path: str) -> tuple[str, str]:
    """Put fresh ids into a path, and return it with its session."""
    agent = await service.agent()
    session = await service.session(agent)
    ids = {"{agent_id}": agent, "{session_id}": session, "{reply_id}": "rep_none"}
    for name, value in ids.items():
        path = path.replace(name, value)
    return path, session


async def test_every_field_of_every_body_takes_every_value(service: Service) -> None:
    described = await document(service)
    for operation, base in (await bases(service)).items():
        method, _, template = operation.partition(" ")
        path, session = await filled(service, template)
        declared = described["paths"][template][method.lower()]["requestBody"]
        schema = declared["content"]["application/json"]["schema"]
        # One field is deprecated, and says so whenever its agent is read.
        places = sorted(
            {*fields(schema, described)} - {("injection", "context_buffer_ratio")}, key=repr
        )
        assert places
        answers = await each(
            ask(service, method, path, body_with(base, place, value))
            for at, place in enumerate(places)
            # Deep places share the values out among them.
            for value in (VALUES + BIG if len(place) == 1 else VALUES[at % 4 :: 4])
        )
        made = [answer for answer in answers if answer.status_code == 201]
        assert {answer.status_code for answer in answers} & {400, 404, 422}
        for answer in made:
            read = await service.client.get(answer.headers["location"])
            assert read.json() == answer.json()
        if method == "POST" and "messages" not in path:
            assert made
        await still_good(service, session)
        for answer in made[::20]:
            if "/sessions/" in answer.headers["location"]:
                await still_good(service, answer.json()["id"])
    await lists_good(service)


async def test_every_operation_takes_every_body(service: Service) -> None:
    for method, template, _ in await operations(service):
        if method in {"GET", "DELETE"}:
            continue
        path, session = await filled(service, template)
        await each(ask(service, method, path, body) for body in BODIES)
        await still_good(service, session)


async def test_every_path_takes_every_id(service: Service) -> None:
    session = await service.session()
    bodies = await bases(service)
    jobs = []
    for method, template, _ in await operations(service):
        content = json.dumps(bodies.get(f"{method} {template}", {})).encode()
        for bad in IDS if "{" in template else ():
            path = template.replace("{session_id}", bad).replace("{agent_id}", bad)
            jobs.append(ask(service, method, path.replace("{reply_id}", bad), content))
            path = template.replace("{session_id}", session).replace("{agent_id}", bad)
            if "{reply_id}" in path:
                jobs.append(ask(service, method, path.replace("{reply_id}", bad)))
    answers = await each(jobs)

    assert {answer.status_code for answer in answers} <= {400, 404, 405, 422}
    await still_good(service, session)


async def test_every_query_parameter_takes_every_value(service: Service) -> None:
    path, session, jobs = "", "", []
    for method, template, operation in await operations(service):
        path, session = await filled(service, template)
        names = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
        for name, value in itertools.product(names, QUERIES):
            jobs.append(ask(service, method, f"{path}?{name}={value}"))
        for query in ("unknown=1", "&&=&%00=", "?", "%ff=%ff", "limit=1&limit=x", "a" * 5000):
            jobs.append(ask(service, method, f"{path}?{query}"))
    await each(jobs)
    await still_good(service, session)


async def test_every_page_of_events_takes_every_value(service: Service) -> None:
    path, session = await filled(service, "/v1/sessions/{session_id}/events")
    page = {"Accept": "application/json"}
    await each(
        ask(service, "GET", f"{path}?{name}={value}", None, page)
        for name, value in itertools.product(["after", "limit", "follow"], QUERIES)
    )
    await still_good(service, session)


async def test_every_header_takes_every_value(service: Service) -> None:
    bodies = await bases(service)
    for method, template, operation in await operations(service):
        if method == "DELETE":
            continue
        path, session = await filled(service, template)
        content = json.dumps(bodies.get(f"{method} {template}", {})).encode()
        body = content if f"{method} {template}" in bodies else None
        own = [each["name"] for each in operation.get("parameters", []) if each["in"] == "header"]
        names = HEADER_NAMES if template.endswith(("/agents", "/messages", "/events")) else own
        await each(
            ask(service, method, path, body, {name: value})
            for name, value in itertools.product(names, HEADERS)
        )
        if "{session_id}" in template:
            await still_good(service, session)


async def test_every_address_takes_every_method(service: Service) -> None:
    paths = {template for _, template, _ in await operations(service)}
    for template in sorted(paths):
        path, _ = await filled(service, template)
        for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "TRACE", "DELETE"):
            await ask(service, method, path)
            await ask(service, method, f"{path}/")


@pytest.mark.parametrize("size", [10 * 1024 * 1024, 10 * 1024 * 1024 + 1])
async def test_a_body_at_the_limit_is_read_and_one_beyond_is_not(
    service: Service, size: int
) -> None:
    session = await service.session()
    room = size - len(b'{"middle_context":{"x":""}}')
    body = b'{"middle_context":{"x":"%b"}}' % (b"x" * room)

    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(body), 1_000_000):
            yield body[at : at + 1_000_000]

    path = f"/v1/sessions/{session}/state"
    answers = [
        await ask(service, "PUT", path, body),
        await ask(service, "PUT", path, pieces(), {"Transfer-Encoding": "chunked"}),
    ]
    state = await service.client.get(path)
    expected = 200 if size == 10 * 1024 * 1024 else 413

    assert [answer.status_code for answer in answers] == [expected, expected]
    assert len(state.json()["middle_context"].get("x", "")) == (room if expected == 200 else 0)
    assert (await service.send(session, "hello"))["finished_reason"] == "completed"


@pytest.mark.parametrize(
    "value", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"1e100000", b"9" * 5000, b"9" * 30]
)
async def test_RC_010_RC_014_a_number_that_could_not_be_read_again_is_refused(  # noqa: N802
    service: Service, value: bytes
) -> None:
    session = await service.session()
    for method, path, body in [
        ("POST", "/v1/agents", b'{"name":"x","model":{"parameters":{"x":%b}}}'),
        ("POST", "/v1/sessions", b'{"agent_id":"x","metadata":{"x":%b}}'),
        ("PATCH", f"/v1/sessions/{session}", b'{"metadata":{"x":%b}}'),
        ("POST", f"/v1/sessions/{session}/messages", b'{"content":"x","max_iters":%b}'),
        ("PUT", f"/v1/sessions/{session}/environment", b'{"x":%b}'),
        ("PUT", f"/v1/sessions/{session}/state", b'{"middle_context":{"x":%b}}'),
    ]:  # fmt: skip
        answer = await ask(service, method, path, body % value)

        assert answer.status_code == 422
        assert value not in answer.content or len(value) < 10
    assert await service.log(session) == []


async def test_what_is_odd_but_right_is_kept_as_it_is(service: Service) -> None:
    odd = {
        "": "empty key",
        "a/b~c": [None, True, 2**63, -(2**63), 1e308, -0.0, 5e-324],
        "😀": "\u202e\u2028\ufeff",
        "deep": json.loads("[" * 50 + "]" * 50),
        "__proto__": {"constructor": 1},
        "\n": "\r\n\t\x01\x7f",
    }
    session = await service.session(metadata=odd, state={"middle_context": odd})
    await service.client.patch(f"/v1/sessions/{session}", json={"metadata": odd})
    snapshot = (await service.client.get(f"/v1/sessions/{session}")).json()
    state = (await service.client.get(f"/v1/sessions/{session}/state")).json()
    log = await service.log(session)

    assert json.dumps(state["middle_context"]) == json.dumps(odd)
    assert json.dumps(log[0]["value"]["middle_context"]) == json.dumps(odd)
    assert snapshot["metadata"] == odd
    await still_good(service, session)


async def test_RC_009_one_poisoned_message_does_not_end_a_session(service: Service) -> None:  # noqa: N802
    session = await service.session()
    for text in (b"\\ud83d", b"\\u0000", b"\\ude00\\ud83d", b"half \\ud83d", b"\\u202e"):
        await ask(service, "POST", f"/v1/sessions/{session}/messages", b'{"content":"x %b"}' % text)
    await still_good(service, session)
