"""Complete /openapi.json: the framework does not know bodies and queries, which routes read themselves."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.http.error_format import ErrorResponse, MessagesErrorResponse, speaks_anthropic
from server.http.request_log import ID_PATTERN, REQUEST_ID

_REFERENCE = "#/components/schemas/{model}"
_FRAMEWORK_SCHEMAS = ("HTTPValidationError", "ValidationError")
_ID_SCHEMA = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
_ID_GIVEN = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "The request's id in the log and in the response. If absent, the server makes one.",
    "schema": _ID_SCHEMA,
}
_ID_RETURNED = {"description": "The request's id in the log.", "required": True, "schema": _ID_SCHEMA}


_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


def body_schema(model: type[BaseModel], *, is_streamed: bool | None = None) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose body is this model.

    is_streamed: whether the response is a stream. None: it is one if the body says so.
    """
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    entry: dict[str, Any] = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
    }
    if "stream" in model.model_fields if is_streamed is None else is_streamed:
        entry["responses"] = {"200": {"content": _EVENTS}}
    return entry


def query_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose query is this model, which must not nest other models."""
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in model.model_json_schema()["properties"].items()
    ]
    entry: dict[str, Any] = {"parameters": parameters}
    if "stream" in model.model_fields:
        entry["responses"] = {"200": {"content": _EVENTS}}
    return entry


def complete_document(
    app: FastAPI, *models: type[BaseModel], open_paths: Collection[str] | None = None
) -> None:
    """Add to the app's OpenAPI document: the models that body_schema() names, the error format and headers.

    open_paths: paths that need no API key; None if no path needs one.
    """
    make_document = app.openapi
    bodies, errors = _schemas(*models), _schemas(ErrorResponse, MessagesErrorResponse)
    for schema in bodies.values():
        _allow_null(schema)

    def document() -> dict[str, Any]:
        whole = make_document()
        components = whole.setdefault("components", {})
        components["parameters"], components["headers"] = (
            {"RequestId": _ID_GIVEN},
            {"RequestId": _ID_RETURNED},
        )
        known = components.setdefault("schemas", {})
        known.update(bodies | errors)
        # The framework validates nothing here, so it never sends its own validation errors.
        for name in _FRAMEWORK_SCHEMAS:
            known.pop(name, None)
        for path, operations in whole["paths"].items():
            for operation in operations.values():
                responses = operation["responses"]
                responses.pop("422", None)
                responses["default"] = _error(path)
                for response in responses.values():
                    response["headers"] = {REQUEST_ID: {"$ref": "#/components/headers/RequestId"}}
                given = {"$ref": "#/components/parameters/RequestId"}
                # The framework caches its document, so a second call finds the parameter already there.
                others = [one for one in operation.get("parameters", ()) if one != given]
                operation["parameters"] = [*others, given]
        if open_paths is not None:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            whole["security"] = [{"key": []}]
            for path in open_paths:
                whole["paths"][path]["get"]["security"] = []
        return whole

    app.openapi = document  # type: ignore[method-assign]


def _schemas(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of models and of those that they nest, by name."""
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    return dict(schemas["$defs"])


def _allow_null(schema: dict[str, Any]) -> None:
    """Let the optional fields of a body be null, which is their default everywhere."""
    for name, given in schema.get("properties", {}).items():
        kinds = given.get("anyOf", [given])
        is_open = not given.keys() - {"title", "description", "default"}
        allows = is_open or {"type": "null"} in kinds or None in given.get("enum", ())
        if name not in schema.get("required", ()) and not allows:
            about = {key: given[key] for key in ("title", "description", "default") if key in given}
            bare = {key: value for key, value in given.items() if key not in about}
            schema["properties"][name] = {**about, "anyOf": [*bare.pop("anyOf", [bare]), {"type": "null"}]}


def _error(path: str) -> dict[str, Any]:
    model = MessagesErrorResponse if speaks_anthropic(path) else ErrorResponse
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"description": "An error.", "content": {"application/json": {"schema": schema}}}
