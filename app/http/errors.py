"""Errors on the wire: RFC 9457 problem documents for every status, and one table of statuses."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

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
    HTTPStatus.NOT_ACCEPTABLE: "not_acceptable",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "body_too_large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unsupported_media_type",
}
PROBLEM = "application/problem+json"


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
        body["errors"] = [{"pointer": pointer, "detail": each} for pointer, each in errors]
    return Response(orjson.dumps(body), status, headers=dict(headers or {}), media_type=PROBLEM)


def install(app: FastAPI) -> None:
    """Answer every error of an application with a problem document."""
    app.add_exception_handler(BearingsError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)


def request_id(request: Request) -> str:
    """Return the request's id, which the edge has given it."""
    return str(request.scope.get("request_id", ""))


async def _known(request: Request, error: Exception) -> Response:
    if not isinstance(error, BearingsError):
        raise error
    return of_error(error, path=request.url.path, request_id=request_id(request))


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


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = [(_pointer(each["loc"]), str(each["msg"])) for each in error.errors()]
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_request",
        "The request is not valid; `errors` says where.",
        path=request.url.path,
        request_id=request_id(request),
        errors=found[:100],
    )


def _pointer(location: Sequence[str | int]) -> str:
    """Write a place as a JSON pointer into the body, or as `/query/…`, `/path/…`, `/header/…`."""
    parts = list(location[1:]) if location and location[0] == "body" else list(location)
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    details = {
        HTTPStatus.NOT_FOUND: "There is no such address.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not possible here; `Allow` says what is.",
    }
    return problem(
        status,
        CODES.get(status, status.name.lower()),
        details.get(status, str(error.detail)),
        path=request.url.path,
        request_id=request_id(request),
        headers=error.headers,
    )


async def _unknown(request: Request, error: Exception) -> Response:
    log.error("request failed", request_id=request_id(request), exc_info=error)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        "Something went wrong here. It was logged under the request_id.",
        path=request.url.path,
        request_id=request_id(request),
    )
