"""Reads JSON values whose shape nobody promised."""

from typing import cast


def as_object(value: object) -> dict[str, object]:
    """Return an object, an empty one in place of anything else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return a list, an empty one in place of anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []
