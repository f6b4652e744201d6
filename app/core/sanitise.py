"""Makes everything that comes in storable, so that everything stored can be read again.

Postgres refuses NUL and lone surrogates in JSON, and takes numbers that Python then cannot read. One
place deals with all of it: HTTP bodies, model streams, tool results and imported states go through.
"""

import json
import re
from typing import NoReturn, TypeAlias

from pydantic import JsonValue

from app.core.errors import Invalid

MAX_DEPTH = 64
MAX_KEYS = 10_000
MAX_INT_DIGITS = 400

Problem: TypeAlias = tuple[str, str]
"""Where something is wrong, as a JSON pointer, and what."""

_BROKEN = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD; halves that belong together become one character."""
    if _BROKEN.search(text) is None:
        return text
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return paired.replace("\x00", "\ufffd")


def is_clean(text: str) -> bool:
    """Tell whether `clean_text` would leave the text as it is."""
    return _BROKEN.search(text) is None


class TextJoiner:
    """Cleans a text that arrives in pieces: a surrogate's halves may come in two of them."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Return the clean text of a piece; a half character at its end waits for the next."""
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            self._half, piece = piece[-1], piece[:-1]
        return clean_text(piece)

    def end(self) -> str:
        """Return what still waits: U+FFFD for a half that never became whole."""
        left, self._half = self._half, ""
        return clean_text(left)


def read_json(raw: bytes) -> JsonValue:
    """Read a request body strictly.

    Text values are cleaned; everything that could not be stored or read again is refused: NaN and
    infinity, whole numbers beyond 64 bits, numbers beyond a double's range, more than 64 levels, more
    than 10,000 keys in one object, and keys with NUL or lone surrogates.

    Raises:
        Invalid: The body is not JSON of that kind; the error says where.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"The body is not UTF-8: byte {error.start} does not belong.") from error
    try:
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_read_int, parse_float=_read_float
        )
    except json.JSONDecodeError as error:
        raise Invalid(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise Invalid(f"The body is nested deeper than {MAX_DEPTH} levels.") from error
    return clean_json(value)


def clean_json(value: JsonValue) -> JsonValue:
    """Clean every text in a JSON value, and check depth and keys.

    Raises:
        Invalid: The value is too deep, an object has too many keys, or a key is not clean.
    """
    return _clean(value, "", 0)


def storable(value: object) -> JsonValue:
    """Make a tool's or a model's value storable, whatever it holds; never raises.

    What is no JSON becomes its text, numbers that are not finite become null, what is too deep is cut.
    """
    return _storable(value, 0)


def _refuse_constant(name: str) -> NoReturn:
    raise Invalid(f"The body is not JSON: {name} is no number there; use null or a text.")


def _read_int(digits: str) -> int:
    number = int(digits) if len(digits) <= MAX_INT_DIGITS else 2**64
    if not -(2**63) <= number < 2**64:
        raise Invalid("A whole number in the body does not fit into 64 bits; send it as a text.")
    return number


def _read_float(digits: str) -> float:
    number = float(digits) if len(digits) <= MAX_INT_DIGITS else float("inf")
    if number in (float("inf"), float("-inf")):
        raise Invalid("A number in the body is beyond the range of a double (1.8e308).")
    return number


def _clean(value: JsonValue, at: str, depth: int) -> JsonValue:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        _check_depth(at, depth)
        if len(value) > MAX_KEYS:
            raise Invalid(
                "The body has too many keys.",
                errors=[(at, f"more than {MAX_KEYS} keys in one object")],
            )
        for key in value:
            if not is_clean(key):
                raise Invalid(
                    "The body has a key that cannot be stored.",
                    errors=[(at, "a key holds NUL or half a surrogate pair")],
                )
        return {
            key: _clean(each, f"{at}/{key.replace('~', '~0').replace('/', '~1')}", depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list):
        _check_depth(at, depth)
        return [_clean(each, f"{at}/{index}", depth + 1) for index, each in enumerate(value)]
    return value


def _check_depth(at: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Invalid(
            f"The body is nested deeper than {MAX_DEPTH} levels.",
            errors=[(at[:200], f"more than {MAX_DEPTH} levels deep")],
        )


def _storable(value: object, depth: int) -> JsonValue:  # noqa: PLR0911 - one case a type
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(value)
        case int():
            if value.bit_length() <= MAX_INT_DIGITS * 3:
                return value
            return f"a whole number of {value.bit_length()} bits"
        case float():
            return value if value - value == 0 else None
        case dict() if depth < MAX_DEPTH:
            items: list[tuple[object, object]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType]
            return {clean_text(str(key)): _storable(each, depth + 1) for key, each in items}
        case list() | tuple() if depth < MAX_DEPTH:
            parts: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]
            return [_storable(each, depth + 1) for each in parts]
        case _:
            return clean_text(str(value))[:10_000]
