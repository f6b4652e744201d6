"""The gate of the edge: ids for requests, and bodies that are whole, bounded, and clean JSON."""

import asyncio
import json
import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core.errors import BearingsError, Invalid
from app.core.sanitise import read_json
from app.http.errors import instance, of_error, problem, unexpected

MOST_BYTES = 10 * 1024 * 1024
INLINE_BYTES = 64 * 1024
"""Larger bodies are read in a thread, so that one does not hold up everyone else."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class _TooLarge(Exception):
    pass


class _NotJson(Exception):
    pass


class _Gone(Exception):
    """The client went away before its body was whole."""


class Guard:
    """Lets a request through when what it brings can be handled.

    A JSON body arrives at the routes cleaned: it can be stored and read again. Everything else is
    refused with a problem document before any route runs. HEAD is answered as GET without its body.
    """

    def __init__(self, app: ASGIApp, *, new_id: Callable[[str], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else self._new_id("req")
        scope["request_id"] = request_id
        exchange = _Exchange(
            receive, send, request_id=request_id, is_head=scope["method"] == "HEAD"
        )
        if exchange.is_head:
            # The server looks at its own scope to know that no body follows.
            scope = {**scope, "method": "GET"}
        try:
            await self._pass(scope, exchange)
        except _Gone:
            return
        except Exception as error:
            if exchange.begun.is_set():
                raise
            refused = unexpected(error, path=instance(scope), request_id=request_id)
            await refused(scope, receive, exchange.send)

    async def _pass(self, scope: Scope, exchange: "_Exchange") -> None:
        path, request_id = instance(scope), exchange.request_id
        receive = exchange.receive
        refused = None
        try:
            _check_address(scope)
            if scope["method"] in {"POST", "PUT", "PATCH"}:
                receive = await _cleaned(Headers(scope=scope), receive)
        except _TooLarge:
            refused = problem(
                413,
                "body_too_large",
                f"The body is larger than {MOST_BYTES // 1024 // 1024} MiB.",
                path=path,
                request_id=request_id,
            )
        except _NotJson:
            refused = problem(
                415,
                "unsupported_media_type",
                "Send the body as JSON, not compressed, with the header "
                "Content-Type: application/json.",
                path=path,
                request_id=request_id,
            )
        except BearingsError as error:
            refused = of_error(error, path=path, request_id=request_id)
        await (refused or self._app)(scope, receive, exchange.send)


class _Exchange:
    """A request's two directions; what goes out carries the request's id, and no body for HEAD."""

    def __init__(self, receive: Receive, send: Send, *, request_id: str, is_head: bool) -> None:
        self._receive, self._send = receive, send
        self.request_id, self.is_head = request_id, is_head
        self.begun = asyncio.Event()

    async def receive(self) -> Message:
        """Return what the client sends; for HEAD, let a stream end behind its headers."""
        if not self.is_head:
            return await self._receive()
        await self.begun.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Answer."""
        if message["type"] == "http.response.start":
            out = MutableHeaders(scope=message)
            out["X-Request-Id"] = self.request_id
            out.setdefault("X-Content-Type-Options", "nosniff")
            await self._send(message)
            self.begun.set()
            if self.is_head:
                await self._send({"type": "http.response.body"})
        elif not self.is_head:
            await self._send(message)


async def _cleaned(headers: Headers, receive: Receive) -> Receive:
    """Read the whole body, and return a `receive` that gives it again, cleaned."""
    raw = await _read(headers, receive)
    if raw:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise _NotJson
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise _NotJson
        if len(raw) <= INLINE_BYTES:
            raw = _clean(raw)
        else:
            raw = await asyncio.to_thread(_clean, raw)
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return again


def _check_address(scope: Scope) -> None:
    """Refuse NUL in a path or query: no name of ours holds it, and Postgres takes none."""
    raw = scope.get("raw_path") or str(scope["path"]).encode()
    if b"\x00" in unquote_to_bytes(raw) or b"\x00" in unquote_to_bytes(scope["query_string"]):
        raise Invalid("The address holds a NUL character.")


async def _read(headers: Headers, receive: Receive) -> bytes:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > MOST_BYTES:
        raise _TooLarge
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _Gone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > MOST_BYTES:
            raise _TooLarge
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _clean(raw: bytes) -> bytes:
    value = read_json(raw)
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, which orjson does not write
        return json.dumps(value).encode()
