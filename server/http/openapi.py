"""Complete /openapi.json: the framework does not know bodies and queries, which routes read themselves."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

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


class ErrorObject(BaseModel):
    """An error. message: for people. param: the field at fault. code: for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every error response, except under /v1/messages, where errors have Anthropic's format."""

    error: ErrorObject


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose body is this model."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def query_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose query is this model, which must not nest other models."""
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in model.model_json_schema()["properties"].items()
    ]
    return {"parameters": parameters}


def complete_document(
    app: FastAPI, *models: type[BaseModel], open_paths: Collection[str] | None = None
) -> None:
    """Add to the app's OpenAPI document: the models that body_schema() names, the error format and headers.

    open_paths: paths that need no API key; None if no path needs one.
    """
    make_document = app.openapi
    described: tuple[type[BaseModel], ...] = (*models, ErrorResponse)

    def document() -> dict[str, Any]:
        whole = make_document()
        _, schemas = models_json_schema(
            [(model, "validation") for model in described], ref_template=_REFERENCE
        )
        components = whole.setdefault("components", {})
        components["parameters"], components["headers"] = (
            {"RequestId": _ID_GIVEN},
            {"RequestId": _ID_RETURNED},
        )
        known = components.setdefault("schemas", {})
        known.update(schemas["$defs"])
        # The framework validates nothing here, so it never sends its own validation errors.
        for name in _FRAMEWORK_SCHEMAS:
            known.pop(name, None)
        for operations in whole["paths"].values():
            for operation in operations.values():
                responses = operation["responses"]
                responses.pop("422", None)
                responses["default"] = _error()
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


def _error() -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(model=ErrorResponse.__name__)}
    return {"description": "An error.", "content": {"application/json": {"schema": schema}}}
