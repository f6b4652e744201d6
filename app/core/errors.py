"""What can go wrong, with a stable code each.

BearingsError
├── NotFound            not_found
├── Conflict            conflict
│   ├── SessionBusy     session_busy
│   ├── VersionMismatch version_mismatch
│   ├── KeyInFlight     idempotency_key_in_flight
│   └── CursorAhead     cursor_ahead
├── CursorGone          cursor_gone
├── Invalid             invalid_request
│   └── KeyReused       idempotency_key_reused
├── Unavailable         unavailable
├── Fenced              fenced
└── ModelError          model_error and the model_… codes
"""

from app.core.messages import ErrorInfo, ErrorType


class BearingsError(Exception):
    """Something that a caller can be told about."""

    code = "error"

    def __init__(self, detail: str = "") -> None:
        self.detail = detail or (self.__doc__ or "").splitlines()[0]
        super().__init__(self.detail)


class NotFound(BearingsError):
    """There is nothing with this id."""

    code = "not_found"


class Conflict(BearingsError):
    """The request does not fit what is there now."""

    code = "conflict"


class SessionBusy(Conflict):
    """The session is writing a reply."""

    code = "session_busy"

    def __init__(self, detail: str, *, reply_id: str) -> None:
        super().__init__(detail)
        self.reply_id = reply_id


class VersionMismatch(Conflict):
    """The thing has changed since you read it; read it again and repeat your change."""

    code = "version_mismatch"


class KeyInFlight(Conflict):
    """A request with this Idempotency-Key is still being handled; ask again in a second."""

    code = "idempotency_key_in_flight"


class CursorAhead(Conflict):
    """The cursor is beyond the end of the log."""

    code = "cursor_ahead"


class CursorGone(BearingsError):
    """The events after this cursor are no longer kept."""

    code = "cursor_gone"


class Invalid(BearingsError):
    """The request is wrong in itself; `errors` says where, by JSON pointer."""

    code = "invalid_request"

    def __init__(self, detail: str = "", *, errors: list[tuple[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.errors = errors or []


class KeyReused(Invalid):
    """This Idempotency-Key was used with another request; use a new key."""

    code = "idempotency_key_reused"


class Unavailable(BearingsError):
    """The service cannot take this on now; try again soon."""

    code = "unavailable"

    def __init__(self, detail: str = "", *, retry_after_seconds: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class NotSent(Unavailable):
    """The database could not be reached; nothing was sent, so asking again is safe."""


class Fenced(BearingsError):
    """Another writer has taken the session; this one writes nothing more."""

    code = "fenced"


class ModelError(BearingsError):
    """A model could not answer.

    Attributes:
        info: What a frontend may show.
        retryable: Whether the same request may succeed later.
        retry_after_seconds: How long the provider asks to wait, if it says so.
    """

    code = "model_error"

    def __init__(
        self,
        message: str,
        *,
        type: ErrorType = "upstream",  # noqa: A002 - the field's name on the wire
        code: str = "model_error",
        retryable: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.info = ErrorInfo(type=type, message=message, code=code)
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
