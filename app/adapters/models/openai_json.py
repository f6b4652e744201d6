"""Writes JSON for a provider."""

import json

import orjson

from app.core.sanitise import storable


def encode(value: object) -> bytes:
    """Write a value whatever it holds; equal values give equal bytes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Half characters in a foreign tool's schema, or an integer beyond 64 bits.
        return json.dumps(storable(value), ensure_ascii=False, separators=(",", ":")).encode()
