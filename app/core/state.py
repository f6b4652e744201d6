"""Where an agent stands in a conversation: `AgentState`, field by field as AgentScope 2.0 has it."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from app.core.messages import (
    Block,
    Content,
    Msg,
    PermissionRule,
    ToolCallBlock,
    ToolResultBlock,
)
from app.core.values import Items, JsonObject, Timestamp, Value

TaskState: TypeAlias = Literal["pending", "in_progress", "completed"]
PermissionMode: TypeAlias = Literal["default", "accept_edits", "explore", "bypass", "dont_ask"]


class Task(Value):
    """One entry of an agent's plan."""

    id: str = ""
    subject: str
    description: str
    metadata: JsonObject
    created_at: Timestamp = ""
    state: TaskState = "pending"
    owner: str | None = None
    blocks: Items[str] = []
    """Ids of the tasks that wait for this one."""
    blocked_by: Items[str] = []
    """Ids of the tasks that this one waits for."""


class TasksContext(Value):
    """The agent's plan, in the order in which it was made."""

    tasks: Items[Task] = []


class ReplyContext(Value):
    """The reply that is being written, or was written last."""

    reply_id: str = ""
    """Also the id of the message that the reply writes."""
    cur_iter: int = 0
    """Rounds of reasoning and acting that this reply has finished."""
    structured_schema: JsonObject | None = None
    structured_output: JsonObject | None = None


class WorkingDirectory(Value):
    """A directory that permissions treat as the agent's own."""

    path: str
    source: str


class PermissionContext(Value):
    """What the agent may do without asking."""

    mode: PermissionMode = "default"
    working_directories: dict[str, WorkingDirectory] = {}
    allow_rules: dict[str, Items[PermissionRule]] = {}
    deny_rules: dict[str, Items[PermissionRule]] = {}
    ask_rules: dict[str, Items[PermissionRule]] = {}


class ReadCacheEntry(Value):
    """A file that the agent has read, as it was then."""

    lines: Items[str]
    updated_at: FiniteFloat
    bytes: FiniteFloat
    """Size in KiB, whatever the name says: AgentScope counts so."""
    file_path: str


class ToolContext(Value):
    """What tools remember between calls."""

    max_cache_files: int = Field(default=100, gt=1)
    max_cache_bytes: FiniteFloat = Field(default=25000.0, gt=10000)
    """In KiB, whatever the name says: AgentScope counts so."""
    read_file_cache: Items[ReadCacheEntry] = []
    activated_groups: Items[str] = []


class AgentState(BaseModel):
    """Everything an agent knows of one conversation: the one mutable value of the house.

    The JSON document is AgentScope 2.0's. Dumps of older versions, with `reply_id` and `cur_iter`
    at the top level, load too. Loaded through `load_state`, unknown keys are ignored.
    """

    model_config = ConfigDict(extra="ignore", validate_assignment=False)

    session_id: str = ""
    summary: str | Items[Content] = ""
    context: Items[Msg] = []
    reply_context: ReplyContext = ReplyContext()
    permission_context: PermissionContext = PermissionContext()
    tool_context: ToolContext = ToolContext()
    tasks_context: TasksContext = TasksContext()
    middle_context: JsonObject = {}

    @model_validator(mode="before")
    @classmethod
    def _lift_legacy_reply_fields(cls, data: object) -> object:
        """Move `reply_id` and `cur_iter` of old dumps into `reply_context`, if it lacks them."""
        if not isinstance(data, dict):
            return data
        document: dict[str, object] = {str(key): value for key, value in data.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        legacy = {key: document.pop(key) for key in ("reply_id", "cur_iter") if key in document}
        given = document.get("reply_context")
        if not legacy or isinstance(given, ReplyContext):
            return document
        document["reply_context"] = {**legacy, **(given if isinstance(given, dict) else {})}
        return document

    @property
    def reply_id(self) -> str:
        """The id of the reply that is being written, or was written last."""
        return self.reply_context.reply_id

    @reply_id.setter
    def reply_id(self, value: str) -> None:
        self.reply_context = self.reply_context.model_copy(update={"reply_id": value})

    @property
    def cur_iter(self) -> int:
        """Rounds of reasoning and acting that the reply has finished."""
        return self.reply_context.cur_iter

    @cur_iter.setter
    def cur_iter(self, value: int) -> None:
        self.reply_context = self.reply_context.model_copy(update={"cur_iter": value})

    def append_context(self, name: str, blocks: Sequence[Block]) -> None:
        """Add blocks to the message that the current reply writes.

        The last message is extended if it is the assistant's, by this name and of this reply;
        otherwise a new message with the reply's id is begun behind it.

        Args:
            name: The agent that speaks.
            blocks: What it says; an empty list begins an empty message when none can be extended.
        """
        tail = self.own_tail(name)
        if tail is None:
            tail = Msg(name=name, role="assistant", content=[], id=self.reply_id)
            self.context.append(tail)
        tail.content.extend(blocks)

    def own_tail(self, name: str) -> Msg | None:
        """Return the last message if the current reply of the agent `name` writes it."""
        tail = self.context[-1] if self.context else None
        if tail and tail.role == "assistant" and tail.name == name and tail.id == self.reply_id:
            return tail
        return None

    def get_awaiting_tool_calls(self, name: str) -> list[ToolCallBlock]:
        """Return the calls of the last message, if `name` wrote it, that wait for an answer.

        Those are the calls in state `asking`, and the calls in state `submitted` without a result.
        """
        tail = self.context[-1] if self.context else None
        if tail is None or tail.role != "assistant" or tail.name != name:
            return []
        answered = _result_ids(tail)
        return [
            call
            for call in tail.content
            if isinstance(call, ToolCallBlock)
            and (call.state == "asking" or (call.state == "submitted" and call.id not in answered))
        ]

    def has_awaiting_tool_calls(self, name: str) -> bool:
        """Tell whether any call of the last message waits for an answer."""
        return bool(self.get_awaiting_tool_calls(name))

    def get_unfinished_tool_calls(self, name: str) -> list[ToolCallBlock]:
        """Return the calls of the current reply's message without a result, whatever their state."""
        tail = self.own_tail(name)
        if tail is None:
            return []
        answered = _result_ids(tail)
        return [
            call
            for call in tail.content
            if isinstance(call, ToolCallBlock) and call.id not in answered
        ]


def load_state(document: JsonObject | str | bytes) -> AgentState:
    """Read an `AgentState` document, ours or AgentScope's, ignoring keys that we do not know.

    Raises:
        pydantic.ValidationError: A known field has a wrong value.
    """
    if isinstance(document, dict):
        return AgentState.model_validate(document, extra="ignore")
    return AgentState.model_validate_json(document, extra="ignore")


def _result_ids(message: Msg) -> set[str]:
    return {block.id for block in message.content if isinstance(block, ToolResultBlock)}
