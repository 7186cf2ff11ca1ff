"""Complete /openapi.json: the framework does not know the bodies, as routes read them themselves."""

from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from reprise.config.settings import Settings
from reprise.server.http.error_responses import (
    ErrorResponse,
    MessagesErrorResponse,
    OllamaErrorResponse,
    speaks_anthropic,
    speaks_ollama,
)
from reprise.server.http.request_log import ID_PATTERN, REQUEST_ID
from reprise.server.requests.fields import IS_ID, UNLIMITED, RequestModel
from reprise.server.requests.generation_fields import MAX_N

if TYPE_CHECKING:
    from reprise.engine.engine import Engine

_REFERENCE = "#/components/schemas/{model}"
_FRAMEWORK_SCHEMAS = ("HTTPValidationError", "ValidationError")
Json = dict[str, Any]
_ID_SCHEMA = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
_ID_GIVEN = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "The request's id in the log and in the response. If absent, the server makes one.",
    "schema": _ID_SCHEMA,
}
_ID_RETURNED = {"description": "The request's id in the log.", "required": True, "schema": _ID_SCHEMA}

_TEXT: Json = {"type": "string"}
_EVENT = {"type": "object", "required": ["data"], "properties": {"event": _TEXT, "data": _TEXT}}
_EVENTS = {"text/event-stream": {"schema": _EVENT}}
_LINES: Json = {"application/x-ndjson": {"schema": {"type": "object"}}}
"""The schemas are those of each event, and of each line."""


def body_schema(
    model: type[BaseModel], *, is_streamed: bool | None = None, in_lines: bool = False
) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose body is validated by this model.

    is_streamed: whether the response is a stream; None if the body decides.
    in_lines: whether streams consist of lines of JSON instead of events.
    """
    content = {"application/json": {"schema": _reference(model)}}
    entry: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if "stream" in model.model_fields if is_streamed is None else is_streamed:
        entry["responses"] = {"200": {"content": _LINES if in_lines else _EVENTS}}
    return entry


def query_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose query is validated by this model, without nested models."""
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in model.model_json_schema()["properties"].items()
    ]
    entry: dict[str, Any] = {"parameters": parameters}
    if "stream" in model.model_fields:
        entry["responses"] = {"200": {"content": _EVENTS}}
    return entry


def complete_document(
    app: FastAPI,
    engine: "Engine",
    settings: Settings,
    models: tuple[type[RequestModel], ...],
    open_paths: Collection[str] = (),
) -> None:
    """Add to the app's OpenAPI document: the models that body_schema() names, the error format and headers.

    open_paths: paths that need no API key, if others do. For an engine with a single model, the document has
        its limits.
    """
    make_document, is_liberal = app.openapi, settings.unknown_fields == "ignore"
    # It takes a tenth of a second, for which no request should wait.
    _make_schemas(models, is_liberal)

    @cache
    def document() -> dict[str, Any]:
        whole = make_document()
        components, known = whole["components"], whole["components"]["schemas"]
        components["parameters"] = {"RequestId": _ID_GIVEN}
        components["headers"] = {"RequestId": _ID_RETURNED}
        known.update(deepcopy(_make_schemas(models, is_liberal)))
        if not engine.may_unload:
            _limit(whole, engine, MAX_N)
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
                operation["parameters"] = [*operation.get("parameters", ()), given]
        if open_paths:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            whole["security"] = [{"key": []}]
            for path in open_paths:
                whole["paths"][path]["get"]["security"] = []
        return whole

    app.openapi = document  # type: ignore[method-assign]


@cache
def _make_schemas(models: tuple[type[RequestModel], ...], is_liberal: bool) -> dict[str, Any]:
    """Return the schemas of bodies and of errors, and of the models that they nest, by name."""
    bodies = _schemas(models)
    _say_what_is_taken(bodies, models, is_liberal)
    return bodies | _schemas([ErrorResponse, MessagesErrorResponse, OllamaErrorResponse])


def _schemas(models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    # Parts of them are the models' own, which the page about the API is made of.
    return deepcopy(dict(schemas["$defs"]))


def _say_what_is_taken(bodies: Json, models: Collection[type[RequestModel]], is_liberal: bool) -> None:
    """Add what the fields' types do not say to the schemas of bodies."""
    for schema in bodies.values():
        # Optional fields may be null, which is their default everywhere.
        for name, given in schema.get("properties", {}).items():
            is_open = not given.keys() - {"title", "description", "default"}
            if name not in schema.get("required", ()) and not is_open and None not in given.get("enum", ()):
                schema["properties"][name] = _or(given, {"type": "null"})
    for model in models:
        if rules := [rule for kind in model.__mro__ for rule in vars(kind).get("rules", ())]:
            bodies[model.__name__]["allOf"] = deepcopy(rules)
    for model in models if is_liberal else ():
        for path in (*model.droppable, *model.takes_anything):
            _allow_anything(bodies, bodies[model.__name__], path.split("."))
    for schema in bodies.values() if is_liberal else ():
        _allow_what_is_mended(schema)


def _allow_anything(bodies: Json, schema: Json, path: list[str]) -> None:
    """Let a field have any value: values without meaning are left out."""
    name, *rest = path
    given = schema["properties"].get(name, {})
    if given and not rest:
        schema["properties"][name] = _or(given, {})
    for one in given.get("anyOf", [given]) if rest else ():
        if "$ref" in one:
            _allow_anything(bodies, bodies[one["$ref"].rpartition("/")[2]], rest)


def _allow_what_is_mended(schema: Json) -> None:
    """Allow what is skipped or converted in a body.

    That is unknown fields, -1 for no limit, and one value where an array is meant.
    """
    schema.pop("additionalProperties", None)
    fields = schema.get("properties", {})
    for name, given in fields.items():
        if name in UNLIMITED:
            fields[name] = _or(given, {"const": -1})
        for kind in given.get("anyOf", [given]):
            held = kind.get("items", {}) if kind.get("type") == "array" else {}
            message = next((one for one in held.get("anyOf", ()) if "allOf" in one), None)
            if held.get("type") in ("string", "integer"):
                fields[name] = _or(fields[name], held)
            elif message:
                # What must be in a message cannot be left out of it.
                fields[name] = _or(fields[name], message)
            elif held.get("type") == "object":
                kind["items"] = {}
                fields[name] = _or(fields[name], {"type": "object"})


def _or(given: Json, other: Json) -> Json:
    """Return the schema of a field that may have another value, too."""
    about: Json = {key: given[key] for key in ("title", "description", "default") if key in given}
    bare = {key: value for key, value in given.items() if key not in about}
    kinds = bare["anyOf"] if bare.keys() == {"anyOf"} else [bare]
    return {**about, "anyOf": kinds if other in kinds else [*kinds, other]}


_OF_OTHER_MODELS = ["/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/api/embed", "/api/embeddings"]


def _limit(whole: Json, engine: "Engine", max_choices: int) -> None:
    """Limit the document to what the served model can do: its tokens, choices, purpose, and infill."""
    last_token = engine.info.vocab_size - 1
    for part in _parts(whole["components"]["schemas"]):
        if IS_ID in part and "pattern" in part:
            part["pattern"] = f"^({_up_to(last_token)})$"
        elif IS_ID in part:
            part["maximum"] = last_token
        if "n" in part.get("properties", ()):
            part["properties"]["n"]["anyOf"][0]["maximum"] = max_choices
    for path in _OF_OTHER_MODELS:
        # One model alone is one that generates.
        whole["paths"].pop(path, None)
    if engine.tokenizer.fim is None:
        whole["paths"].pop("/infill", None)
        for body in ("CompletionRequest", "OllamaGenerateRequest"):
            suffix = whole["components"]["schemas"][body]["properties"]["suffix"]
            suffix["anyOf"][0]["maxLength"] = 0


def _parts(schema: Any) -> Iterator[Json]:
    """Yield a schema and all objects in it."""
    if isinstance(schema, dict):
        yield schema
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _parts(one)


def _up_to(most: int) -> str:
    """Return the regular expression of the decimal numbers from 0 to most, without leading zeros."""
    digits = str(most)
    found = ["0", digits] if most else ["0"]
    if len(digits) > 1:
        found.append(f"[1-9][0-9]{{0,{len(digits) - 2}}}")
    for index, digit in enumerate(digits):
        least, below = int(index == 0), int(digit) - 1
        if below >= least:
            found.append(f"{digits[:index]}[{least}-{below}][0-9]{{{len(digits) - index - 1}}}")
    return "|".join(found)


def _error(path: str) -> dict[str, Any]:
    model: type[BaseModel] = MessagesErrorResponse if speaks_anthropic(path) else ErrorResponse
    model = OllamaErrorResponse if speaks_ollama(path) else model
    return {"description": "An error.", "content": {"application/json": {"schema": _reference(model)}}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}
