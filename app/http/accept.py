"""Which of two media types a client would rather have."""

from collections.abc import Sequence

JSON = "application/json"
EVENTS = "text/event-stream"


def preferred(accept: Sequence[str], offers: Sequence[str]) -> str:
    """Choose what to answer with.

    The highest quality wins; among equals what is named over what a wildcard covers, then what stands
    first in the header. A header that allows none of the offers is disregarded: an answer of another
    type helps more than none.

    Args:
        accept: The `Accept` headers of a request.
        offers: Media types, the default first.
    """
    ranges = [each for header in accept for each in map(_range, header.split(",")) if each]
    best, best_rank = offers[0], (0.0, 0, 0)
    for offer in offers:
        family = offer.partition("/")[0]
        named = {offer: 2, f"{family}/*": 1, "*/*": 0}
        fits = [
            (named[kind], quality, -at)
            for at, (kind, quality) in enumerate(ranges)
            if kind in named
        ]
        if fits:
            how_near, quality, place = max(fits)
            rank = (quality, how_near, place if how_near else 0)
            if quality > 0 and rank > best_rank:
                best, best_rank = offer, rank
    return best


def _range(text: str) -> tuple[str, float] | None:
    kind, *parameters = [part.strip().lower() for part in text.split(";")]
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return None
    return (kind, quality) if kind and 0 <= quality <= 1 else None
