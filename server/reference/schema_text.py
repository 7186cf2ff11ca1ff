"""JSON schemas in words: what a field may be, within which limits."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_TYPES = {"string": "string", "integer": "whole number", "number": "number", "boolean": "boolean"}


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """The schema itself, or the one that it refers to."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """The schemas of which a value fits one; null, which always means the default, is left out."""
    schema = resolved(schema, definitions)
    for one in schema.get("anyOf") or [schema]:
        if one is not schema:
            yield from alternatives(one, definitions)
        elif schema.get("type") != "null":
            yield schema


def in_words(schema: Schema, definitions: Schema) -> str:
    """The type of a field and its limits, such as `whole number (0 to 20)`."""
    words = [_one(schema, definitions) for schema in alternatives(schema, definitions)]
    return " or ".join(dict.fromkeys(words))


def code(value: object) -> str:
    """A JSON value as code in Markdown."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _one(schema: Schema, definitions: Schema) -> str:
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"] if value is not None)
    match schema.get("type"):
        case None:
            return "anything"
        case "array":
            entries = _plural(in_words(schema.get("items", {}), definitions))
            return f"array of {entries}" + _limits(schema, "minItems", "maxItems", " entries")
        case "object":
            values = schema.get("additionalProperties")
            held = f" of {_plural(_one(values, definitions))}" if isinstance(values, dict) else ""
            return f"object{held}" + _limits(schema, "minProperties", "maxProperties", " entries")
        case "string":
            return "string" + _limits(schema, "minLength", "maxLength", " characters")
        case kind:
            return _TYPES[kind] + _limits(schema, "minimum", "maximum")


def _plural(words: str) -> str:
    if words.startswith("array"):
        return "arrays" + words.removeprefix("array")
    head, bracket, limits = words.partition(" (")
    return words if head == "anything" or head.startswith("`") else f"{head}s{bracket}{limits}"


def _limits(schema: Schema, least: str, most: str, unit: str = "") -> str:
    match schema.get(least), schema.get(most):
        case None, None:
            return ""
        case None, limit:
            return f" (at most {limit}{unit})"
        case limit, None:
            return f" (at least {limit}{unit})"
        case lowest, highest:
            return f" ({lowest} to {highest}{unit})"
