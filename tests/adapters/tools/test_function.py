"""Functions as tools."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app.adapters.tools.function import FunctionTool, as_tool
from app.adapters.tools.tasks import task_tools
from app.core.state import TasksContext
from app.ports.tools import TextChunk, ToolCall, ToolEnd


class Plan:
    def read(self):
        return TasksContext()

    def write(self, tasks):
        raise AssertionError("nobody writes here")


def call_with(arguments):
    return ToolCall(
        id="call_1", key="key", arguments=arguments, now="", session_id="ses_1", tasks=Plan()
    )


async def chunks_of(tool, **arguments):
    return [chunk async for chunk in tool.run(call_with(arguments))]


async def text_of(tool, **arguments):
    chunks = await chunks_of(tool, **arguments)

    assert not any(isinstance(chunk, ToolEnd) for chunk in chunks)
    return "".join(chunk.text for chunk in chunks)


async def failure_of(tool, **arguments):
    text, end = await chunks_of(tool, **arguments)

    assert end == ToolEnd("error", {})
    return text.text


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    title: str
    floor: int = 0


class StrictDay(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date


def book(place: Place, day: date, colour: Colour = Colour.RED, seats: int = 2) -> str:
    """Book a table.

    The booking holds for an hour.

    Args:
        place: Where to sit,
            and on which floor.
        day (date): When.
        seats: How many: at least 1.

    Returns:
        A sentence.
    """
    return f"{type(place).__name__} {place.floor} {day.year} {colour.name} {seats}"


def test_the_schema_is_read_off_the_signature_and_the_docstring():
    schema = FunctionTool(book).schema

    assert (schema.name, schema.description) == (
        "book",
        "Book a table.\n\nThe booking holds for an hour.",
    )
    assert schema.parameters == {
        "type": "object",
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "floor": {"type": "integer", "default": 0},
                },
                "required": ["title"],
            },
            "Colour": {"type": "string", "enum": ["red", "blue"]},
        },
        "properties": {
            "place": {
                "$ref": "#/$defs/Place",
                "description": "Where to sit, and on which floor.",
            },
            "day": {"type": "string", "format": "date", "description": "When."},
            "colour": {"$ref": "#/$defs/Colour", "default": "red"},
            "seats": {"type": "integer", "default": 2, "description": "How many: at least 1."},
        },
        "required": ["place", "day"],
        "additionalProperties": False,
    }


def test_the_schema_is_the_same_object_every_time():
    tool = FunctionTool(book)

    assert tool.schema is tool.schema


async def test_the_function_receives_what_its_annotations_say():
    text = await text_of(
        FunctionTool(book),
        place={"title": "Bay", "floor": 3},
        day="2026-11-28",
        colour="blue",
        seats=4,
    )

    assert text == "Place 3 2026 BLUE 4"


async def test_what_is_not_sent_is_left_to_the_functions_own_default():
    unset = object()

    def look(limit: int = unset) -> bool:
        return limit is unset

    tool = FunctionTool(look)

    assert tool.schema.parameters["properties"] == {"limit": {"type": "integer"}}
    assert await text_of(tool) == "true"


async def test_a_strict_model_takes_a_date_as_json_writes_it():
    def look(when: StrictDay) -> int:
        return when.day.month

    assert await text_of(FunctionTool(look), when={"day": "2026-11-28"}) == "11"


async def test_wrong_arguments_are_an_error_that_names_each_parameter():
    text = await failure_of(
        FunctionTool(book), place={"title": "Bay", "floor": "up"}, colour="red", extra=1
    )

    assert text == (
        "Invalid arguments for tool 'book': "
        "place.floor: Input should be a valid integer, unable to parse string as an integer; "
        "day: Field required; extra: Extra inputs are not permitted"
    )


async def test_parameters_may_have_names_that_a_model_may_not():
    def odd(_private: int, json: int, model_config: int, copy: int, self: int) -> int:
        return _private + json + model_config + copy + self

    tool = FunctionTool(odd)

    assert tool.schema.parameters["required"] == [
        "_private",
        "json",
        "model_config",
        "copy",
        "self",
    ]
    assert await text_of(tool, _private=1, json=2, model_config=3, copy=4, self=5) == "15"


async def test_a_property_called_title_stays():
    def name(title: str, anything: JsonValue, untyped=None, more: dict[str, JsonValue] = {}) -> str:  # noqa: B006
        return title

    tool = FunctionTool(name)

    assert tool.schema.parameters == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "anything": {},
            "untyped": {"default": None},
            "more": {"type": "object", "additionalProperties": True, "default": {}},
        },
        "required": ["title", "anything"],
        "additionalProperties": False,
    }
    assert await text_of(tool, title="x", anything=[1]) == "x"


def test_an_annotated_description_and_its_bounds_win_over_the_docstring():
    def look(depth: Annotated[int, Field(ge=1, description="how deep")], mode: Literal["a", "b"]):
        """Look.

        Args:
            depth: Something else.
            mode: Which.
        """

    properties = FunctionTool(look).schema.parameters["properties"]

    assert properties == {
        "depth": {"type": "integer", "minimum": 1, "description": "how deep"},
        "mode": {"type": "string", "enum": ["a", "b"], "description": "Which."},
    }


def test_options_replace_what_is_read_off_the_function():
    tool = FunctionTool(
        lambda: "hi", name="greet", description="Say hi.", concurrent=False, idempotent=True
    )

    assert (tool.schema.name, tool.schema.description) == ("greet", "Say hi.")
    assert (tool.concurrent, tool.idempotent) == (False, True)


async def test_the_call_is_handed_over_and_hidden_from_the_model():
    async def key(call: ToolCall, suffix: str) -> str:
        return call.key + suffix + str(len(call.tasks.read().tasks))

    tool = FunctionTool(key)

    assert list(tool.schema.parameters["properties"]) == ["suffix"]
    assert await text_of(tool, suffix="!") == "key!0"


async def test_a_sync_function_runs_in_a_thread_unless_it_says_that_it_does_not_block():
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await text_of(FunctionTool(where)) == "false"
    assert await text_of(FunctionTool(where, blocking=False)) == "true"


async def test_a_function_in_a_thread_has_the_call_but_not_the_plan():
    def key(call: ToolCall) -> str:
        return call.key

    def peek(call: ToolCall) -> int:
        return len(call.tasks.read().tasks)

    assert await text_of(FunctionTool(key)) == "key"
    assert await text_of(FunctionTool(peek, blocking=False)) == "0"
    with pytest.raises(RuntimeError, match="blocking=False"):
        await chunks_of(FunctionTool(peek))


async def test_an_async_generator_yields_its_text_as_it_comes():
    async def count(to: int) -> AsyncGenerator[str, None]:
        for number in range(to):
            await asyncio.sleep(0)
            yield str(number)

    chunks = await chunks_of(FunctionTool(count), to=3)

    assert chunks == [TextChunk("0"), TextChunk("1"), TextChunk("2")]


async def test_closing_the_tool_closes_the_generator():
    closed = []

    async def count():
        try:
            yield "one"
            yield "two"
        finally:
            closed.append(True)

    stream = FunctionTool(count).run(call_with({}))
    await anext(stream)
    await stream.aclose()

    assert closed == [True]


async def test_an_async_generator_yields_text_only():
    async def count():
        yield 1

    with pytest.raises(TypeError, match="yielded int"):
        await chunks_of(FunctionTool(count))


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        (3, "3"),
        (True, "true"),
        (float("nan"), "null"),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        ([Place(title="Bay")], '[{"title":"Bay","floor":0}]'),
        (Place(title="Bay"), '{"title":"Bay","floor":0}'),
        (Point(1), '{"x":1}'),
        (date(2026, 11, 28), '"2026-11-28"'),
    ],
)
async def test_a_result_is_text_or_json(result, text):
    async def give():
        return result

    assert await text_of(FunctionTool(give)) == text


@pytest.mark.parametrize("result", [b"x", bytearray(b"x"), memoryview(b"x"), object()])
async def test_a_result_without_a_text_is_refused_by_name(result):
    async def give():
        return result

    with pytest.raises(TypeError, match=f"'give' returned {type(result).__name__}"):
        await chunks_of(FunctionTool(give))


async def test_what_the_function_raises_is_raised():
    def divide(by: int) -> float:
        return 1 / by

    with pytest.raises(ZeroDivisionError):
        await chunks_of(FunctionTool(divide), by=0)


async def test_a_validation_error_of_the_functions_own_is_not_blamed_on_the_arguments():
    def inner() -> Place:
        return Place.model_validate({})

    with pytest.raises(ValueError, match="title"):
        await chunks_of(FunctionTool(inner))


async def test_methods_partials_and_callable_objects_are_functions_too():
    class Shop:
        """A shop."""

        def price(self, of: str, factor: int) -> str:
            """Tell a price.

            Args:
                of: What.
                factor: How often.
            """
            return of * factor

        async def __call__(self, of: str) -> str:
            return of

    shop = Shop()
    method = FunctionTool(shop.price)
    partial = FunctionTool(functools.partial(shop.price, factor=2))
    thing = FunctionTool(shop)

    assert (method.schema.name, partial.schema.name, thing.schema.name) == (
        "price",
        "price",
        "Shop",
    )
    assert partial.schema.description == "Tell a price."
    assert partial.schema.parameters["required"] == ["of"]
    assert thing.schema.description == "A shop."
    assert await text_of(method, of="a", factor=3) == "aaa"
    assert await text_of(partial, of="a") == "aa"
    assert await text_of(thing, of="a") == "a"


def takes_anything(**options):
    pass


def takes_more(*names):
    pass


def takes_by_place(place, /):
    pass


def has_a_field(depth: int = Field(3)):
    pass


def has_no_json_form(lock: threading.Lock):
    pass


def is_unresolved(place: "Nowhere"):  # noqa: F821
    pass


def is_a_generator():
    yield "text"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (takes_anything, r"'\*\*options' of tool 'takes_anything' takes any arguments"),
        (takes_more, r"'\*names' of tool 'takes_more' takes any arguments"),
        (takes_by_place, "'place' of tool 'takes_by_place' is positional-only"),
        (has_a_field, "'depth' of tool 'has_a_field' has a Field as its default"),
        (has_no_json_form, "of tool 'has_no_json_form' has no JSON form"),
        (is_unresolved, "'is_unresolved' cannot be read: name 'Nowhere'"),
        (is_a_generator, "make it an async generator"),
        (lambda: "", "'<lambda>' is no name for a tool"),
        (Place, "Place is a class"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused_with_a_reason(function, reason):
    with pytest.raises(ValueError, match=reason):
        FunctionTool(function)


@pytest.mark.parametrize("name", ["", "two words", "ü", "x" * 65, "line\n"])
def test_a_name_that_providers_refuse_is_refused(name):
    with pytest.raises(ValueError, match="is no name for a tool"):
        FunctionTool(book, name=name)


def test_a_tool_stays_and_a_function_becomes_one():
    tool = task_tools()[0]

    assert as_tool(tool) is tool
    assert as_tool(book).schema == FunctionTool(book).schema


def test_what_is_neither_tool_nor_function_is_refused():
    with pytest.raises(TypeError, match="neither a tool nor a function"):
        as_tool("book")
