"""Errors on the wire: RFC 9457 problem documents for every status, and one table of statuses."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from app.core.errors import BearingsError, Invalid, SessionBusy, Unavailable

log = structlog.get_logger()

STATUS = {
    "not_found": HTTPStatus.NOT_FOUND,
    "conflict": HTTPStatus.CONFLICT,
    "session_busy": HTTPStatus.CONFLICT,
    "version_mismatch": HTTPStatus.PRECONDITION_FAILED,
    "idempotency_key_in_flight": HTTPStatus.CONFLICT,
    "idempotency_key_reused": HTTPStatus.UNPROCESSABLE_ENTITY,
    "cursor_ahead": HTTPStatus.CONFLICT,
    "cursor_gone": HTTPStatus.GONE,
    "invalid_request": HTTPStatus.UNPROCESSABLE_ENTITY,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "fenced": HTTPStatus.SERVICE_UNAVAILABLE,
}
CODES = {
    HTTPStatus.BAD_REQUEST: "bad_request",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "body_too_large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unsupported_media_type",
}
PROBLEM = "application/problem+json"
MOST_ERRORS = 100
MOST_POINTER = 200
"""Characters: a key of the client's may be as long as its body."""


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    path: str,
    request_id: str,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[tuple[str, str]] = (),
    **more: str,
) -> Response:
    """Make a problem document.

    Args:
        status: The HTTP status.
        code: Stable, for programs.
        detail: What is wrong and what to do, for people. Never what the client sent.
        path: Of the request.
        request_id: Of the request.
        headers: More headers.
        errors: For 422, a JSON pointer and what is wrong there, each.
        **more: More members.
    """
    body: dict[str, object] = {
        "type": f"urn:bearings:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": path,
        "code": code,
        "request_id": request_id,
        **more,
    }
    if errors:
        body["errors"] = [
            {"pointer": pointer[:MOST_POINTER], "detail": each}
            for pointer, each in errors[:MOST_ERRORS]
        ]
    all_headers = {"X-Request-Id": request_id, **(headers or {})}
    return Response(orjson.dumps(body), status, headers=all_headers, media_type=PROBLEM)


def install(app: FastAPI) -> None:
    """Answer every error of an application with a problem document."""
    app.add_exception_handler(BearingsError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def request_id(request: Request) -> str:
    """Return the request's id, which the edge has given it."""
    return str(request.scope.get("request_id", ""))


def instance(scope: Scope) -> str:
    """Return a request's path as it came, which is a URI reference whatever a client put into it."""
    raw: bytes = scope.get("raw_path") or b"/"
    return raw.decode("latin-1")


async def _known(request: Request, error: Exception) -> Response:
    if not isinstance(error, BearingsError):
        raise error
    return of_error(error, path=instance(request.scope), request_id=request_id(request))


def of_error(error: BearingsError, *, path: str, request_id: str) -> Response:
    """Make the problem document of one of our errors."""
    status = STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    headers: dict[str, str] = {}
    more: dict[str, str] = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif status == HTTPStatus.SERVICE_UNAVAILABLE or error.code.endswith("in_flight"):
        headers["Retry-After"] = "1"
    if isinstance(error, SessionBusy):
        more["reply_id"] = error.reply_id
    return problem(
        status,
        error.code,
        error.detail,
        path=path,
        request_id=request_id,
        headers=headers,
        errors=error.errors if isinstance(error, Invalid) else (),
        **more,
    )


def unexpected(error: Exception, *, path: str, request_id: str) -> Response:
    """Log what nobody foresaw, and make a problem document that says nothing of it."""
    log.error("request failed", request_id=request_id, exc_info=error)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        "Something went wrong here. It was logged under the request_id.",
        path=path,
        request_id=request_id,
    )


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found: list[Mapping[str, Any]] = list(error.errors())[:MOST_ERRORS]
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_request",
        "The request is not valid; `errors` says where.",
        path=instance(request.scope),
        request_id=request_id(request),
        errors=[(_pointer(each, error.body), _detail(each)) for each in found],
    )


def _pointer(error: Mapping[str, Any], body: object) -> str:
    """Write a place as a JSON pointer into the body, or as `/query/…`, `/path/…`, `/header/…`.

    Pydantic names branches of unions among the keys; what is not in the body is left out, unless that
    is what is wrong.
    """
    place: Sequence[str | int] = error["loc"]
    if place[:1] != ("body",):
        return _joined(place)
    parts: list[str | int] = []
    at = body
    for part in place[1:]:
        inside = cast("Any", at)
        if (isinstance(at, dict) and part in at) or (
            isinstance(at, list) and isinstance(part, int) and part < len(inside)
        ):
            at = inside[part]
            parts.append(part)
    if error["type"] == "missing" and place[1:]:
        parts.append(place[-1])
    return _joined(parts)


def _joined(parts: Sequence[str | int]) -> str:
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def _detail(error: Mapping[str, Any]) -> str:
    """Say what is wrong without what was sent."""
    match error["type"]:
        case "extra_forbidden":
            return "there is no such field"
        case "union_tag_invalid":
            context = error["ctx"]
            return f"{context['discriminator']} must be one of {context['expected_tags']}"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    details = {
        HTTPStatus.NOT_FOUND: "There is no such address.",
        HTTPStatus.METHOD_NOT_ALLOWED: "The method is not possible here; `Allow` says which are.",
    }
    return problem(
        status,
        CODES.get(status, status.name.lower()),
        details.get(status, str(error.detail)),
        path=instance(request.scope),
        request_id=request_id(request),
        headers=headers,
    )


def _methods(request: Request) -> set[str]:
    """Return every method that an address takes: each is a route of its own."""
    found = {"OPTIONS"}
    for route in iter_route_contexts(request.app.routes):
        if route.matches(request.scope)[0] != Match.NONE:
            found.update(route.methods or ())
    return found | ({"HEAD"} if "GET" in found else set[str]())
