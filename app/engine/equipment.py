"""What an agent works with while it writes a reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from operator import is_

from app.core.messages import Decision, Msg
from app.core.specs import ContextConfig, InjectionConfig
from app.core.tokens import count_message, count_text, count_tools
from app.core.values import JsonObject
from app.ports.models import ChatModel, ToolSchema
from app.ports.tools import Tool

TOOL_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Equipment:
    """An agent's definition with its model and tools at hand.

    Attributes:
        name: The agent's name, under which its messages stand.
        system_prompt: The same bytes in every call, so that providers cache the prompt.
        model: Who answers.
        tools: By name, in the order in which the model is told of them.
        external: Tools that somebody else executes, by name; the model is told of them last.
        asks: What people may decide about the calls of a tool, for tools whose calls wait for it.
        injection: When the agent is told where it stands.
        context: How full its window may be; resolved, the deprecated ratio included.
        max_iters: Rounds of reasoning and acting in one reply.
        tool_timeout: Longest time of one tool call.
    """

    name: str
    system_prompt: str
    model: ChatModel
    tools: Mapping[str, Tool]
    injection: InjectionConfig
    context: ContextConfig
    max_iters: int
    tool_timeout: timedelta = TOOL_TIMEOUT
    external: Mapping[str, ToolSchema] = field(default_factory=dict[str, ToolSchema])
    asks: Mapping[str, list[Decision]] = field(default_factory=dict[str, list[Decision]])

    @cached_property
    def schemas(self) -> Sequence[ToolSchema]:
        """What the model is told of the tools, always in the same order."""
        return (*[tool.schema for tool in self.tools.values()], *self.external.values())

    def schema(self, name: str) -> ToolSchema | None:
        """Return what the model is told of a tool, if there is one of this name."""
        tool = self.tools.get(name)
        return self.external.get(name) if tool is None else tool.schema

    @cached_property
    def tokens(self) -> int:
        """Estimate of what stands in every prompt: the system prompt and the tools."""
        schemas: list[JsonObject] = [
            {"name": each.name, "description": each.description, "parameters": each.parameters}
            for each in self.schemas
        ]
        return count_text(self.system_prompt) + count_tools(schemas)


@dataclass
class Meter:
    """Counts the tokens of one conversation's prompts: each message once, as long as it only grows.

    Only the last message changes in place; those before it are known by being the same objects.
    """

    _counted: list[Msg] = field(default_factory=list[Msg])
    _tokens: int = 0

    def count(self, equipment: Equipment, summary: str, context: list[Msg]) -> int:
        """Estimate the tokens of the whole prompt."""
        finished, last = context[:-1], context[-1:]
        if len(self._counted) > len(finished) or not all(map(is_, self._counted, finished)):
            self._counted, self._tokens = [], 0
        self._tokens += sum(map(count_message, finished[len(self._counted) :]))
        self._counted = finished
        said = count_text(summary) + self._tokens + sum(map(count_message, last))
        return equipment.tokens + said
