"""The description that clients are made from: what FastAPI finds out, and how errors look."""

from typing import Any, cast

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from app.core.state import AgentState
from app.http.errors import PROBLEM
from app.http.schemas import Problem

_REFERENCE = "#/components/schemas/{model}"
_RESPONSE = {"$ref": "#/components/responses/Problem"}


def install(app: FastAPI) -> None:
    """Describe every error of an application as the problem document that it is."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(describe())
        return app.openapi_schema

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
