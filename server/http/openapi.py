"""What /openapi.json says that the framework does not know: routes read bodies and queries themselves."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.http.request_log import ID_PATTERN, REQUEST_ID

_REFERENCE = "#/components/schemas/{model}"
_FRAMEWORKS_OWN = ("HTTPValidationError", "ValidationError")
_ID_SCHEMA = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
_ID_GIVEN = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "A name for the request in the log; without it the server makes one.",
    "schema": _ID_SCHEMA,
}
_ID_TOLD = {"description": "The name of the request in the log.", "required": True, "schema": _ID_SCHEMA}


class ErrorObject(BaseModel):
    """What went wrong. param: the field at fault. code: a word that programs can compare."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every answer that is no success, but for /v1/messages, whose errors are Anthropic's."""

    error: ErrorObject


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What a route's document says of its body."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def query_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What a route's document says of its query, of models without models in them."""
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in model.model_json_schema()["properties"].items()
    ]
    return {"parameters": parameters}


def complete_document(
    app: FastAPI, *models: type[BaseModel], open_paths: Collection[str] | None = None
) -> None:
    """Add the models that routes name with body_schema() to the document, the shape of errors, headers.

    open_paths: what may be asked without an API key; None where nothing needs one.
    """
    document_of_routes = app.openapi
    described: tuple[type[BaseModel], ...] = (*models, ErrorResponse)

    def document() -> dict[str, Any]:
        whole = document_of_routes()
        _, schemas = models_json_schema(
            [(model, "validation") for model in described], ref_template=_REFERENCE
        )
        components = whole.setdefault("components", {})
        components["parameters"], components["headers"] = {"RequestId": _ID_GIVEN}, {"RequestId": _ID_TOLD}
        known = components.setdefault("schemas", {})
        known.update(schemas["$defs"])
        # The framework checks nothing here, so nothing fails in its way.
        for name in _FRAMEWORKS_OWN:
            known.pop(name, None)
        for operations in whole["paths"].values():
            for operation in operations.values():
                responses = operation["responses"]
                responses.pop("422", None)
                responses["default"] = _error()
                for response in responses.values():
                    response["headers"] = {REQUEST_ID: {"$ref": "#/components/headers/RequestId"}}
                given = {"$ref": "#/components/parameters/RequestId"}
                # The framework keeps its document: this is not the first time, perhaps.
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
