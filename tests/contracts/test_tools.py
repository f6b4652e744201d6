"""What every tool behind the port promises, asked of each."""

import re

import jsonschema
import pytest

from app.adapters.tools.function import FunctionTool
from app.adapters.tools.tasks import task_tools
from app.core.state import TasksContext
from app.ports.tools import DataChunk, TextChunk, Tool, ToolCall, ToolEnd
from tests.support.tools import WrittenTool


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


TOOLS: list[Tool] = [*task_tools(), FunctionTool(add), WrittenTool("Echo")]
ARGUMENTS = {
    "TaskCreate": {"subject": "s", "description": "d"},
    "TaskGet": {"task_id": "1"},
    "TaskUpdate": {"task_id": "1", "status": "completed"},
    "add": {"a": 1},
}


class Plan:
    def __init__(self) -> None:
        self.tasks = TasksContext()

    def read(self) -> TasksContext:
        return self.tasks

    def write(self, tasks: TasksContext) -> None:
        self.tasks = tasks


@pytest.fixture(params=TOOLS, ids=lambda tool: tool.schema.name)
def tool(request: pytest.FixtureRequest) -> Tool:
    return request.param


def test_a_schema_is_an_object_that_providers_take(tool: Tool) -> None:
    jsonschema.Draft202012Validator.check_schema(tool.schema.parameters)

    assert tool.schema.parameters["type"] == "object"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.schema.name)


def test_a_schema_is_the_same_object_every_time(tool: Tool) -> None:
    assert tool.schema is tool.schema


def test_flags_are_plain(tool: Tool) -> None:
    assert tool.concurrent in (True, False)
    assert tool.idempotent in (True, False)


async def test_a_call_yields_chunks_and_ends_at_most_once(tool: Tool) -> None:
    arguments = ARGUMENTS.get(tool.schema.name, {})
    given = ToolCall("c", "s:r:c", arguments, "2026-07-01T12:00:00Z", "s", Plan())
    chunks = [chunk async for chunk in tool.run(given)]

    assert all(isinstance(chunk, TextChunk | DataChunk | ToolEnd) for chunk in chunks)
    assert sum(isinstance(chunk, ToolEnd) for chunk in chunks) <= 1
