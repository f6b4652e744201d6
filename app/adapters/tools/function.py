"""A tool made of a Python function: its signature is the schema, its docstring the description."""

import asyncio
import functools
import inspect
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, TypeGuard, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from app.core.state import TasksContext
from app.core.values import JsonObject
from app.ports.models import ToolSchema
from app.ports.tools import TextChunk, Tool, ToolCall, ToolChunk, ToolEnd

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns?|Yields?|Raises):\s*")
_ARGS = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
_PLAIN_VALUES = frozenset({"default", "const", "enum", "examples", "required", "discriminator"})


class FunctionTool:
    """A tool that calls a function with the values that its annotations ask for.

    The function may be sync, async, or an async generator that yields text. Its docstring's text
    before `Args:` tells the model what the tool does, the entries of `Args:` what each parameter
    means. What the model sent is validated, so the function receives dates, enums and models rather
    than JSON; a parameter annotated `ToolCall` receives the call, and the model does not see it.

    The result may be text, None, or anything with a JSON form. What the function raises is the
    caller's to turn into an error result, as for every tool.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str | None = None,
        description: str | None = None,
        concurrent: bool = True,
        idempotent: bool = False,
        blocking: bool = True,
    ) -> None:
        """Read the function's signature and docstring.

        Args:
            function: What to call; neither a class nor a sync generator.
            name: 1 to 64 letters, digits, `_` or `-`; the function's own name when absent.
            description: What the model is told; the docstring's text before `Args:` when absent.
            concurrent: Whether calls may run at once with others of the same round.
            idempotent: Whether a call may run again when nobody knows whether it took effect.
            blocking: Whether a sync function runs in a thread, where it cannot be cancelled and has
                no access to the session's plan. False runs it on the event loop, which waits.

        Raises:
            ValueError: A model could not call this function; the text says why.
        """
        code = _code(function)
        self._function = function
        self._blocking = blocking and not (
            inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        )
        self._concurrent = concurrent
        self._idempotent = idempotent
        known = name if name is not None else _name(function, code)
        if not _NAME.fullmatch(known):
            raise ValueError(
                f"{known!r} is no name for a tool: pass a `name` of 1 to 64 letters, digits, _ or -"
            )
        if inspect.isgeneratorfunction(code):
            raise ValueError(f"Tool {known!r} is a sync generator; make it an async generator")
        doc = _documentation(function, code)
        self._signature = _read_signature(function, code, tool=known, notes=_notes(doc))
        self._schema = ToolSchema(
            name=known,
            description=_summary(doc) if description is None else description,
            parameters=self._signature.schema,
        )

    @property
    def schema(self) -> ToolSchema:
        """What a model is told of the function."""
        return self._schema

    @property
    def concurrent(self) -> bool:
        """Whether calls may run at once with others of the same round."""
        return self._concurrent

    @property
    def idempotent(self) -> bool:
        """Whether a call may run again when nobody knows whether it took effect."""
        return self._idempotent

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        """Call the function.

        Yields:
            Its text as it comes, or its result as one text. Arguments that do not fit the annotations
            are an error result that names the parameters.

        Raises:
            TypeError: The function returned something that is no text and has no JSON form.
            Exception: Whatever the function raises.
        """
        try:
            values = self._signature.values(call.arguments)
        except ValidationError as error:
            yield TextChunk(_complaint(self._schema.name, error))
            yield ToolEnd("error", {})
            return
        if self._blocking:
            values |= dict.fromkeys(self._signature.for_call, replace(call, tasks=_OutOfReach()))
            result = await asyncio.to_thread(self._function, **values)
        else:
            values |= dict.fromkeys(self._signature.for_call, call)
            result = self._function(**values)
        if inspect.isawaitable(result):
            result = await result
        if not inspect.isasyncgen(result):
            yield TextChunk(_text(self._schema.name, result))
            return
        async with aclosing(result) as parts:
            async for part in parts:
                if not isinstance(part, str):
                    kind = type(part).__name__
                    raise TypeError(f"Tool {self._schema.name!r} yielded {kind}; yield text only")
                yield TextChunk(part)


def as_tool(thing: Tool | Callable[..., object]) -> Tool:
    """Make a tool of a function; a tool stays what it is.

    Raises:
        ValueError: A model could not call this function; the text says why.
        TypeError: It is neither a tool nor a function.
    """
    if _is_tool(thing):
        return thing
    if not callable(thing):
        raise TypeError(f"{thing!r} is neither a tool nor a function")
    return FunctionTool(thing)


def parameters_schema(model: type[BaseModel]) -> JsonObject:
    """Write a model's JSON Schema the way tools show it: without what tells a language model nothing.

    Titles only repeat names, and the model's own description repeats the tool's.

    Raises:
        pydantic.errors.PydanticUserError: A field has a type that JSON cannot say.
    """
    written: JsonObject = model.model_json_schema(schema_generator=_QuietSchema)
    definitions = written.get("$defs")
    if isinstance(definitions, dict):
        # Any JSON value at all is written as a reference to an empty schema.
        used = {name: each for name, each in definitions.items() if each != {}}
        anything = frozenset(f"#/$defs/{name}" for name in definitions if name not in used)
        written = written | {"$defs": used} if used else _but(written, "$defs")
    else:
        anything = frozenset[str]()
    return _plain_schema(_but(written, "description"), anything)


class _QuietSchema(GenerateJsonSchema):
    # A default that JSON cannot say is left out of the schema: the function fills it in itself.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}


class _OutOfReach:
    """The plan of a call that runs in a thread, where reading and writing it would lose changes."""

    def read(self) -> TasksContext:
        raise RuntimeError(self._reason)

    def write(self, tasks: TasksContext) -> None:  # noqa: ARG002 - the port's name
        raise RuntimeError(self._reason)

    _reason = (
        "A sync function runs in a thread, from where the session's plan cannot be reached: make the "
        "function async, or the tool with blocking=False"
    )


@dataclass(frozen=True)
class _Signature:
    """A function's parameters, as a model that validates them.

    Attributes:
        model: One field a parameter; the parameter's name is the field's alias.
        names: The parameter of each field.
        for_call: Parameters that receive the call itself.
        schema: What a language model is told.
    """

    model: type[BaseModel]
    names: Mapping[str, str]
    for_call: tuple[str, ...]
    schema: JsonObject

    def values(self, arguments: JsonObject) -> dict[str, object]:
        """Validate arguments; what was not sent is left to the function's own default."""
        # As JSON, because a strict model takes a date from a JSON text but not from a Python one.
        valid = self.model.model_validate_json(json.dumps(arguments))
        return {self.names[field]: getattr(valid, field) for field in valid.model_fields_set}


def _read_signature(
    function: Callable[..., object],
    code: Callable[..., object],
    *,
    tool: str,
    notes: Mapping[str, str],
) -> _Signature:
    try:
        parameters = inspect.signature(function).parameters
        hints: dict[str, object] = get_type_hints(code, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"The annotations of tool {tool!r} cannot be read: {error}") from error
    fields: dict[str, tuple[object, object]] = {}
    names: dict[str, str] = {}
    for_call: list[str] = []
    for parameter in parameters.values():
        _refuse_unnameable(parameter, tool)
        hint = hints.get(parameter.name, object)
        if hint is ToolCall:
            for_call.append(parameter.name)
            continue
        # Fields are numbered, since a parameter may be called what a model may not: `_x`, `json`.
        field = f"p{len(fields)}"
        names[field] = parameter.name
        required = parameter.default is inspect.Parameter.empty
        note = None if _is_described(hint) else notes.get(parameter.name)
        fields[field] = (
            Annotated[hint, Field(alias=parameter.name, description=note)]
            if note
            else Annotated[hint, Field(alias=parameter.name)],
            ... if required else parameter.default,
        )
    try:
        model: type[BaseModel] = create_model(  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
            tool,
            __config__=ConfigDict(extra="forbid"),
            **fields,  # pyright: ignore[reportArgumentType]
        )
        schema = parameters_schema(model)  # pyright: ignore[reportUnknownArgumentType]
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"A parameter of tool {tool!r} has no JSON form: {reason}") from error
    return _Signature(model=model, names=names, for_call=tuple(for_call), schema=schema)  # pyright: ignore[reportUnknownArgumentType]


def _refuse_unnameable(parameter: inspect.Parameter, tool: str) -> None:
    """Refuse a parameter that cannot be given by name, which is all that a model can do."""
    match parameter.kind:
        case inspect.Parameter.POSITIONAL_ONLY:
            reason = "is positional-only, but a model gives arguments by name"
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            reason = (
                "takes any arguments, but a model must be told which; name them, or take a dict"
            )
        case _ if isinstance(parameter.default, FieldInfo):
            reason = "has a Field as its default; write Annotated[..., Field(...)] instead"
        case _:
            return
    raise ValueError(f"Parameter {str(parameter).split(':')[0]!r} of tool {tool!r} {reason}")


def _code(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function that holds the annotations: inside a partial, or a callable object's."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        raise ValueError(f"{function.__name__} is a class; a tool is made of a function")
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _name(function: Callable[..., object], code: Callable[..., object]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return code.__name__
    return type(function).__name__


def _documentation(function: Callable[..., object], code: Callable[..., object]) -> list[str]:
    doc = inspect.getdoc(code)
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
        doc = doc if code.__doc__ else inspect.getdoc(type(function))
    return (doc or "").splitlines()


def _summary(doc: list[str]) -> str:
    """Return the text before the first section about parameters, results or errors."""
    end = next((at for at, line in enumerate(doc) if _SECTION.fullmatch(line)), len(doc))
    return "\n".join(doc[:end]).strip()


def _notes(doc: list[str]) -> dict[str, str]:
    """Read what a Google-style `Args:` section says of each parameter, each on one line."""
    begin = next((at for at, line in enumerate(doc) if _ARGS.fullmatch(line)), len(doc))
    notes: dict[str, str] = {}
    depth, name = 0, ""
    for line in doc[begin + 1 :]:
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        depth = depth or indent
        entry = _ENTRY.fullmatch(text) if indent <= depth else None
        if entry:
            name, notes[entry[1]] = entry[1], entry[2]
        elif name:
            notes[name] = f"{notes[name]} {text}".strip()
    return notes


def _is_described(hint: object) -> bool:
    extras: tuple[object, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(isinstance(extra, FieldInfo) and extra.description for extra in extras)


def _is_tool(thing: Tool | Callable[..., object]) -> TypeGuard[Tool]:
    # A class has its schema only once it is an instance, so this does not take Tool classes.
    return isinstance(getattr(thing, "schema", None), ToolSchema)


def _but(schema: JsonObject, without: str) -> JsonObject:
    return {key: value for key, value in schema.items() if key != without}


def _plain_schema(schema: JsonObject, anything: frozenset[str]) -> JsonObject:
    """Drop titles, and references to the definitions in `anything`, which allow every value."""
    plain: JsonObject = {}
    for key, value in schema.items():
        if key == "title" or (key == "$ref" and value in anything):
            continue
        if key in _PLAIN_VALUES:
            plain[key] = value
        elif key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            plain[key] = {name: _plain(each, anything) for name, each in value.items()}
        elif key == "additionalProperties":
            plain[key] = _plain(value, anything) or value is not False
        else:
            plain[key] = _plain(value, anything)
    return plain


def _plain(value: JsonValue, anything: frozenset[str]) -> JsonValue:
    match value:
        case dict():
            return _plain_schema(value, anything)
        case list():
            return [_plain(each, anything) for each in value]
        case _:
            return value


def _complaint(tool: str, error: ValidationError) -> str:
    """Say which parameters are wrong and how, without repeating what was sent."""
    wrong = [
        f"{'.'.join(str(part) for part in each['loc']) or 'arguments'}: {each['msg']}"
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return f"Invalid arguments for tool '{tool}': {'; '.join(wrong)}"


def _text(tool: str, result: object) -> str:
    if result is None:
        return ""
    if isinstance(result, str):
        return result
    kind = type(result).__name__
    if isinstance(result, bytes | bytearray | memoryview):
        raise TypeError(
            f"Tool {tool!r} returned {kind}, not text; decode it, or encode it in base64"
        )
    try:
        return to_json(result, inf_nan_mode="null").decode()
    except (PydanticSerializationError, ValueError) as error:
        raise TypeError(
            f"Tool {tool!r} returned {kind}, which has no JSON form: {error}"
        ) from error
