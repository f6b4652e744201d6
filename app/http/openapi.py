"""The description that clients are made from: what FastAPI finds out, and what it does not."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from app.core.state import AgentState
from app.core.values import Value
from app.http.errors import PROBLEM
from app.http.schemas import Problem

_REFERENCE = "#/components/schemas/{model}"
_RESPONSE = {"$ref": "#/components/responses/Problem"}


def install(app: FastAPI) -> None:
    """Describe every error of an application as the problem document that it is."""
    describe = app.openapi
    whole: dict[str, Any] | None = None

    def described() -> dict[str, Any]:
        nonlocal whole
        if whole is None:
            whole = _completed(describe())
        return whole

    app.openapi = described


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    _, extra = models_json_schema(
        [(Problem, "serialization"), (AgentState, "serialization")],
        ref_template=_REFERENCE,
    )
    parts = document["components"]
    parts["schemas"] = cast("dict[str, Any]", extra["$defs"]) | parts["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    _describe(parts["schemas"])
    schema = {"$ref": _REFERENCE.format(model="Problem")}
    parts["responses"] = {
        "Problem": {
            "description": "What went wrong, as a problem document (RFC 9457).",
            "headers": {
                "X-Request-Id": {"schema": {"type": "string"}},
                "Retry-After": {
                    "description": "With 429 and 503: seconds.",
                    "schema": {"type": "integer"},
                },
            },
            "content": {PROBLEM: {"schema": schema}},
        }
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            _complete(operation["responses"])
    return document


def _complete(responses: dict[str, Any]) -> None:
    responses.pop("422", None)
    responses["default"] = _RESPONSE
    for status, response in responses.items():
        if status.startswith(("4", "5")):
            response["content"] = {
                PROBLEM: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}
            }


def _describe(schemas: dict[str, Any]) -> None:
    """Say of every field what the line below it says.

    Pydantic would do it by itself, at import, by searching all modules for each class: a tenth of
    what it takes to start, for a document that is hardly ever asked for.
    """
    for model in _values(Value):
        name = re.sub(r"[^\w.-]", "_", model.__name__)
        for key in {name, f"{name}-Input", f"{name}-Output"} & schemas.keys():
            fields: dict[str, Any] = schemas[key].get("properties", {})
            for field, text in _meanings(model).items():
                if field in fields:
                    fields[field].setdefault("description", text)


def _values(base: type[Value]) -> Iterator[type[Value]]:
    for each in base.__subclasses__():
        yield each
        yield from _values(each)


def _meanings(model: type[Value]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, Value):
            found |= _documented(each.__module__).get(each.__name__, {})
    return found


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Read the fields' docstrings of a module's classes; where its source is not there, none."""
    classes: dict[str, dict[str, str]] = {}
    try:
        source = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    except (KeyError, OSError):
        return classes
    for outer in ast.parse(source).body:
        if not isinstance(outer, ast.ClassDef):
            continue
        fields = classes[outer.name] = {}
        for line, below in pairwise(outer.body):
            match line, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    fields[name] = inspect.cleandoc(text)
                case _:
                    pass
    return classes
