"""The bodies of requests in /openapi.json: routes read them themselves, unknown to the framework."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFERENCE = "#/components/schemas/{model}"


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """What a route's document says of its body."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe_bodies(app: FastAPI, *models: type[BaseModel]) -> None:
    """Add the models that routes name with takes() to the app's document."""
    document_of_routes = app.openapi

    def document() -> dict[str, Any]:
        whole = document_of_routes()
        _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
        whole.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return whole

    app.openapi = document  # type: ignore[method-assign]
