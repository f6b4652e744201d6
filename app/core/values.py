"""What every value of the house is made of."""

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, StringConstraints

JsonObject: TypeAlias = dict[str, JsonValue]
"""An open-ended JSON object: its keys are somebody else's."""

Timestamp: TypeAlias = str
"""A moment as text: RFC 3339 in UTC when it is ours, `""` when it was never set.

States written by AgentScope carry naive local times; they load and are kept as they are.
"""

FieldName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
"""The name of an injected field, which becomes a tag in a hint."""

Label: TypeAlias = Annotated[
    str,
    StringConstraints(
        pattern=r"^[^\x00-\x1f\x7f\ufffd]*\S[^\x00-\x1f\x7f\ufffd]*$", max_length=128
    ),
]
"""A name that people read: 1 to 128 characters, no control characters, not blank."""


class Value(BaseModel):
    """A frozen value, equal by content, that refuses fields it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="null", use_attribute_docstrings=True
    )
