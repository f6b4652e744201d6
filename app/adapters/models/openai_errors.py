"""Says what went wrong at a model's provider as a `ModelError`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeAlias

import aiohttp

from app.adapters.models.loose_json import as_list, as_object
from app.core.errors import ModelError
from app.core.messages import ErrorType
from app.core.sanitise import clean_text

MAX_ERROR_CHARS = 500

_TransportError: TypeAlias = aiohttp.ClientError | OSError
TRANSPORT_ERRORS = (aiohttp.ClientError, OSError)

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|context_window_exceeded"
    r"|maximum (context|model|prompt|input) length"  # OpenAI, vLLM, Mistral, OpenRouter, xAI
    r"|exceeds? the (available|model'?s?) (maximum )?context"  # llama.cpp, SGLang
    r"|context (size|length|window|limit)\W+(has been |was |is |be |of [^.]* )?"
    r"(exceed|overflow|too (small|long))"
    r"|(exceed\w*|longer than|larger than|more than|beyond) [^.]{0,40}context"
    r"|(prompt|input|request) (is )?too (long|large) (for|:)|prompt (is )?too long"
    r"|input token count [^.]*exceeds"  # Gemini
    r"|exceeded model token limit"  # Moonshot
    r"|range of input length"  # DashScope
    r"|reduce the length of the (messages|prompt|input)"  # OpenAI, Groq
    r"|tokens` \+ `max_new_tokens|must have less than \d+ tokens",  # TGI
    re.IGNORECASE,
)

_STATUS_OF_WORDS = (
    ("context_length", 400),
    ("exceed_context_size", 400),
    ("rate_limit", 429),
    ("quota", 429),
    ("api_key", 401),
    ("authentication", 401),
    ("permission", 403),
    ("invalid_request", 400),
    ("badrequest", 400),
    ("bad_request", 400),
)
"""Which status an error within a stream would have had, by its code; 500 when it says nothing."""

_KINDS: dict[int, tuple[ErrorType, str]] = {
    401: ("authentication", "model_authentication"),
    # An account without money is like one without rights: another provider can help.
    402: ("permission", "model_permission"),
    403: ("permission", "model_permission"),
    408: ("connection", "model_timeout"),
    429: ("rate_limit", "model_rate_limited"),
}
_NOT_OVERFLOW = frozenset({401, 402, 403, 429})
_TRY_AGAIN = frozenset({408, 409, 429})


def refused(status: int, headers: Mapping[str, str], body: bytes, *, secret: str) -> ModelError:
    """Say why there was an error's status in place of an answer; without the secret."""
    return _model_error(
        status,
        _complaint(_parsed(body)),
        secret=secret,
        retry_after_seconds=_retry_after(headers),
    )


def error_in_stream(raw: bytes, *, secret: str) -> ModelError:
    """Say what a chunk complains of; without the secret."""
    complaint = _complaint(_parsed(raw))
    status = complaint.status or next(
        (status for word, status in _STATUS_OF_WORDS if word in complaint.code),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    if not complaint.message:
        complaint = replace(complaint, message="The provider reported an error within the answer.")
    return _model_error(status, complaint, secret=secret)


def unfit() -> ModelError:
    """Say that the model cannot be asked with the address or the key that it was given."""
    return ModelError(
        "The model's address or API key holds characters that do not belong there.",
        type="setup",
        code="model_invalid_request",
    )


def unreachable(error: _TransportError) -> ModelError:
    """Tell why there was no answer; without the error's text, which names internal hosts."""
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return ModelError(
            "The model's address is not one that can be asked.",
            type="setup",
            code="model_invalid_request",
        )
    if _is_timeout(error):
        return _timeout()
    return ModelError(
        "The model's provider cannot be reached.",
        type="connection",
        code="model_connection",
        retryable=True,
    )


def broken_off(error: _TransportError) -> ModelError:
    """Tell why the connection broke before the answer's end."""
    return _timeout() if _is_timeout(error) else cut()


def cut() -> ModelError:
    """Say that the answer ended before its end."""
    return ModelError(
        "The model's answer broke off.", type="upstream", code="model_stream_cut", retryable=True
    )


def bad_answer(what: str) -> ModelError:
    """Say that the provider sent what is no answer."""
    return ModelError(
        f"The model's provider sent {what}.",
        type="upstream",
        code="model_bad_answer",
        retryable=True,
    )


@dataclass(frozen=True)
class _Complaint:
    """What a provider says is wrong.

    Attributes:
        message: In its words.
        code: Its code and its type, in small letters.
        status: The HTTP status, where the complaint itself holds one.
    """

    message: str = ""
    code: str = ""
    status: int | None = None


def _model_error(
    status: int,
    complaint: _Complaint,
    *,
    secret: str,
    retry_after_seconds: float | None = None,
) -> ModelError:
    said = f"{complaint.code} {complaint.message}"
    is_server_side = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if status not in _NOT_OVERFLOW and _OVERFLOW.search(said):
        kind: tuple[ErrorType, str] = ("invalid_request", "model_context_overflow")
        retryable = False
    else:
        default: tuple[ErrorType, str] = (
            ("upstream", "model_upstream")
            if is_server_side
            else ("invalid_request", "model_invalid_request")
        )
        kind = _KINDS.get(status, default)
        # Money does not come back within seconds.
        retryable = (status in _TRY_AGAIN or is_server_side) and "insufficient_quota" not in said
    return ModelError(
        _shown(complaint.message, secret=secret) or _status_message(status),
        type=kind[0],
        code=kind[1],
        retryable=retryable,
        retry_after_seconds=retry_after_seconds,
    )


def _shown(message: str, *, secret: str) -> str:
    """Make a provider's message fit to be shown: one line of at most 500 characters, no key.

    The key goes first, so that cutting cannot leave a part of it.
    """
    message = " ".join(clean_text(message).split())
    if secret:
        message = message.replace(secret, "***")
    return message[:MAX_ERROR_CHARS]


def _status_message(status: int) -> str:
    try:
        phrase = f" ({HTTPStatus(status).phrase})"
    except ValueError:
        phrase = ""
    return f"The model's provider answered with status {status}{phrase}."


def _parsed(body: bytes) -> object:
    """Read an error's body: JSON where it is, else its text, but no web page."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "" if text.startswith("<") else text


def _complaint(value: object, *, depth: int = 0) -> _Complaint:
    """Find the message in an error document, of which there are many shapes."""
    if depth > 4:  # noqa: PLR2004 - deeper than any of them
        return _Complaint()
    if isinstance(value, str):
        return _Complaint(value)
    for each in as_list(value):
        if (found := _complaint(each, depth=depth + 1)).message:
            return found
    document = as_object(value)
    nested = next(filter(None, map(document.get, ("error", "errors", "detail"))), None)
    inner = _complaint(nested, depth=depth + 1) if nested else _Complaint()
    own = next(filter(None, map(document.get, ("message", "msg", "error_msg"))), "")
    message = own if isinstance(own, str) and not isinstance(nested, dict) else ""
    message = message or inner.message or (own if isinstance(own, str) else "")
    raw = as_object(document.get("metadata")).get("raw")  # OpenRouter: what its provider said
    if isinstance(raw, str) and raw:
        message = f"{message}: {raw}"
    codes = [str(document[key]).lower() for key in ("code", "type") if document.get(key)]
    status = next((int(each) for each in codes if re.fullmatch("[45]\\d\\d", each)), None)
    return _Complaint(message, " ".join([*codes, inner.code]), inner.status or status)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long the provider asks to wait, in seconds; a date counts from the response's own."""
    if (milliseconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after", "")
    if (seconds := _number(asked)) is not None:
        return seconds
    until = _date(asked)
    if until is None:
        return None
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text) else None


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_timeout(error: _TransportError) -> bool:
    """Tell whether it answered too late; who cannot be connected to in time is out of reach."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _timeout() -> ModelError:
    return ModelError(
        "The model's provider did not answer in time.",
        type="connection",
        code="model_timeout",
        retryable=True,
    )
