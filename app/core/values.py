"""What every value of the house is made of."""

from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

Item = TypeVar("Item")

JsonObject: TypeAlias = dict[str, JsonValue]
"""An open-ended JSON object: its keys are somebody else's."""

Timestamp: TypeAlias = str
"""A moment as text: RFC 3339 in UTC when it is ours, `""` when it was never set.

States written by AgentScope carry naive local times; they load and are kept as they are.
"""

FieldName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
"""The name of an injected field, which becomes a tag in a hint."""

Items: TypeAlias = Annotated[list[Item], Field(fail_fast=True)]
"""A list of any length: the first wrong item is told, because a million of them take ten seconds."""

Label: TypeAlias = Annotated[
    str,
    StringConstraints(
        pattern=r"^[^\x00-\x1f\x7f\ufffd]*[^\s\x00-\x1f\x7f\ufffd][^\x00-\x1f\x7f\ufffd]*$",
        max_length=128,
    ),
]
"""A name that people read: 1 to 128 characters, no control characters, not blank."""


class Value(BaseModel):
    """A frozen value, equal by content, that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
