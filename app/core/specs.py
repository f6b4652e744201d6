"""What a person configures: an agent's definition and its parts."""

import warnings
from datetime import UTC, datetime
from typing import Annotated, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import (
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from app.core.messages import Decision
from app.core.values import FieldName, JsonObject, Label, Value

DEFAULT_TEMPLATE = (
    "<system-reminder>Treat the following as the ground truth at this point of the conversation. "
    "Anything stated earlier is outdated, and a later reminder, if any, supersedes this one:\n"
    "{runtime_state}\n</system-reminder>"
)
DEFAULT_SOURCE = '{"label": "System", "sublabel": "Runtime State"}'
DEFAULT_RETRIES_HINT = (
    "The last {count} calls to '{tool_name}' with the same arguments all failed. Stop retrying the "
    "same call as-is, check the error message and try a different approach."
)
TASK_TOOLS = ("TaskCreate", "TaskGet", "TaskList", "TaskUpdate")
RESERVED_FIELDS = frozenset({"current-time", "timezone", "tasks", "context-length", "tool-error"})

FieldValue: TypeAlias = Annotated[str, StringConstraints(max_length=4096)]

_PROBE = datetime(2026, 11, 28, 13, 45, 59, tzinfo=UTC)
"""A moment whose parts all differ, so that a format that drops or swaps one is found out."""


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        return False
    return True


def _keeps_minutes(time_format: str, zone: str) -> bool:
    local = _PROBE.astimezone(ZoneInfo(zone))
    try:
        written = local.strftime(time_format)
        read = datetime.strptime(written, time_format).replace(tzinfo=local.tzinfo)
    except ValueError:
        return False
    clean = all(char.isprintable() and char not in "<>&" for char in written)
    return clean and read.replace(second=0, microsecond=0) == local.replace(second=0)


class InjectionConfig(Value):
    """When and how the agent is told where it stands, before a reasoning step.

    Every field and default is AgentScope's; `trigger_fields` is ours.
    """

    inject_runtime_state: bool = True
    timezone: str = "UTC"
    """An IANA zone name, such as `Asia/Shanghai`."""
    time_format: str = Field(default="%Y-%m-%dT%H:%M:%S", min_length=2, max_length=128)
    """A strftime format that keeps a timestamp to the minute, date included."""
    time_interval: float = Field(default=0.5, ge=0)
    """Hours after which the time is told again; `inf` never tells it again by age."""
    tool_retries_limit: int = Field(default=3, ge=3)
    """Failures in a row, of one tool with the same arguments, that cause a hint."""
    tool_retries_hint: str = Field(default=DEFAULT_RETRIES_HINT, max_length=4096)
    """`{tool_name}` and `{count}` are filled in."""
    template: str = Field(default=DEFAULT_TEMPLATE, max_length=16384)
    """Wraps the injected fields, which replace `{runtime_state}`."""
    injection_source: str = Field(default=DEFAULT_SOURCE, max_length=1024)
    """The source of the hint blocks, by which earlier injections are recognised."""
    task_tool_names: list[str] = Field(default=list(TASK_TOOLS), max_length=64)
    """Tools whose calls show that the agent knows its tasks."""
    extra_fields: dict[FieldName, FieldValue] = Field(default={}, max_length=64)
    """Fields that ride along with every injection."""
    trigger_fields: list[FieldName] = Field(default=[], max_length=64)
    """Fields of the live environment whose change causes an injection by itself."""
    emit_hint_event: bool = True
    """Whether frontends are shown the hint as a `HINT_BLOCK` event."""
    context_buffer_ratio: float | None = Field(default=None, ge=0, le=1, deprecated=False)
    """Deprecated: use the `context_buffer_ratio` of the context config, which this overrides."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        if not _is_time_zone(name):
            raise ValueError("is no IANA time zone; one looks like 'Europe/Berlin'")
        return name

    @field_validator("time_interval")
    @classmethod
    def _no_nan(cls, hours: float) -> float:
        if hours != hours:  # noqa: PLR0124 - the one value that differs from itself
            raise ValueError("must be a number of hours")
        return hours

    @field_validator("template")
    @classmethod
    def _has_placeholder(cls, template: str) -> str:
        if "{runtime_state}" not in template:
            raise ValueError("must contain {runtime_state}, which the injected fields replace")
        return template

    @field_validator("extra_fields", "trigger_fields")
    @classmethod
    def _not_reserved(cls, names: dict[str, str] | list[str]) -> dict[str, str] | list[str]:
        if taken := sorted(RESERVED_FIELDS.intersection(names)):
            raise ValueError(f"{', '.join(taken)}: these names are the runtime's own")
        return names

    @model_validator(mode="after")
    def _format_round_trips(self) -> Self:
        if not _keeps_minutes(self.time_format, self.timezone):
            raise ValueError(
                "time_format does not keep a whole timestamp: written and read again it must give the "
                "same date, hour and minute, on one line, without <, > or &"
            )
        return self


class ContextConfig(Value):
    """How much of the model's window the conversation may fill."""

    trigger_ratio: float = Field(default=0.85, gt=0, le=0.9)
    """Share of the window at which the context is compressed."""
    reserve_ratio: float = Field(default=0.1, gt=0, lt=0.9)
    """Share of the window that stays verbatim when it is."""
    context_buffer_ratio: float = Field(default=0.2, ge=0, le=1)
    """Share of the window, ahead of the trigger, within which the agent is told."""
    compression_tool_enabled: bool = False
    """Whether the agent may compress by itself; refused over HTTP, where nothing compresses yet."""
    tool_result_limit: int = Field(default=20000, ge=1)
    """Most tokens of one tool result."""
    max_images: int = Field(default=5, ge=0)
    """Not used yet: every image stays."""


class ReActConfig(Value):
    """The loop of reasoning and acting."""

    max_iters: int = Field(default=50, ge=1, le=1000)
    """Rounds in one reply."""
    stop_on_reject: bool = False
    """Not there yet, and refused over HTTP: nothing asks people so far."""
    structured_output_grace_iters: int = Field(default=5, gt=0, le=100)
    """Not used yet: answers are text."""


class ModelSpec(Value):
    """Which model answers, and how it is asked."""

    provider: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    base_url: Annotated[str, StringConstraints(pattern=r"^https?://", max_length=2048)] | None = (
        None
    )
    """Where the provider is, when not where the operator set it."""
    context_size: int = Field(default=128_000, ge=1)
    """Tokens that the model's window holds."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    parameters: JsonObject = {}
    """Passed on to the provider as they are, such as `temperature`."""
    input_types: list[Literal["text", "image"]] = Field(default=["text"], max_length=8)


ToolName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""A name that every provider takes."""

NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


class ExternalTool(Value):
    """A tool that the client executes: its calls wait until somebody tells their results."""

    name: ToolName
    description: str = Field(default="", max_length=16_384)
    parameters: JsonObject = NO_PARAMETERS
    """A JSON Schema of type object."""


class ToolsSpec(Value):
    """The tools that the agent may call."""

    builtin: list[str] = Field(default=["tasks"], max_length=64)
    """Names of built-in groups; `GET /v1/tools` lists them."""
    external: list[ExternalTool] = Field(default=[], max_length=128)
    """Tools whose calls are announced by `REQUIRE_EXTERNAL_EXECUTION`."""


ALL_DECISIONS: tuple[Decision, ...] = ("approve", "edit", "reject", "respond")


class InterruptOn(Value):
    """Which decisions people may take about a tool's calls."""

    allowed_decisions: list[Decision] = Field(default=list(ALL_DECISIONS), min_length=1)


class AgentSpec(Value):
    """An agent's definition, as a person writes it."""

    name: Label
    description: str = Field(default="", max_length=4096)
    system_prompt: str = Field(default="You are a helpful assistant.", max_length=1_000_000)
    model: ModelSpec | None = None
    """The operator's default model when absent."""
    fallback_model: ModelSpec | None = None
    model_retries: int = Field(default=2, ge=0, le=10)
    react: ReActConfig = ReActConfig()
    injection: InjectionConfig = InjectionConfig()
    context: ContextConfig = ContextConfig()
    tools: ToolsSpec = ToolsSpec()
    interrupt_on: dict[ToolName, bool | InterruptOn] = Field(default={}, max_length=256)
    """Tools whose calls wait for a person's decision before they run."""

    def decisions(self, tool: str) -> list[Decision]:
        """Return what people may decide about a tool's calls; nothing when nobody is asked."""
        asked = self.interrupt_on.get(tool, False)
        if isinstance(asked, InterruptOn):
            return asked.allowed_decisions
        return list(ALL_DECISIONS) if asked else []

    @model_validator(mode="after")
    def _ratios_fit(self) -> Self:
        fitting_context(self.context, self.injection)
        return self


def resolve_context(context: ContextConfig, injection: InjectionConfig) -> ContextConfig:
    """Do what `fitting_context` does, and warn of the deprecated ratio: for whoever writes configs.

    Raises:
        ValueError: The ratios do not fit together.
    """
    if injection.context_buffer_ratio is not None:
        warnings.warn(
            "InjectionConfig.context_buffer_ratio is deprecated: set the context_buffer_ratio of "
            "ContextConfig instead",
            DeprecationWarning,
            stacklevel=3,
        )
    return fitting_context(context, injection)


def fitting_context(context: ContextConfig, injection: InjectionConfig) -> ContextConfig:
    """Apply the deprecated ratio of an injection config, and check that the ratios fit together.

    The given config is not changed: another agent may share it.

    Raises:
        ValueError: `reserve_ratio`, or `context_buffer_ratio` where it is used, is not smaller than
            `trigger_ratio`.
    """
    if injection.context_buffer_ratio is not None:
        context = context.model_copy(
            update={"context_buffer_ratio": injection.context_buffer_ratio}
        )
    if context.reserve_ratio >= context.trigger_ratio:
        raise ValueError("context.reserve_ratio must be smaller than context.trigger_ratio")
    buffer_is_used = injection.inject_runtime_state or context.compression_tool_enabled
    if buffer_is_used and context.context_buffer_ratio >= context.trigger_ratio:
        raise ValueError("context.context_buffer_ratio must be smaller than context.trigger_ratio")
    return context


EnvironmentValue: TypeAlias = StrictStr | StrictBool | StrictInt | StrictFloat


def environment_text(value: JsonValue) -> str:
    """Write a live value the way an agent reads it: text as it is, anything else as JSON does."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
