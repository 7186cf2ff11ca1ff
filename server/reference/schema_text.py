"""Describe a JSON schema in words: a field's type and its limits."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_TYPES = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """Follow $ref; return a schema without one unchanged."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """Yield the alternatives of anyOf, except null, which always means the default."""
    schema = resolved(schema, definitions)
    for one in schema.get("anyOf") or [schema]:
        if one is not schema:
            yield from alternatives(one, definitions)
        elif schema.get("type") != "null":
            yield schema


def describe_type(schema: Schema, definitions: Schema) -> str:
    """Return the type of a field and its limits, such as `integer (0 to 20)`."""
    words = [_one(schema, definitions) for schema in alternatives(schema, definitions)]
    return " or ".join(dict.fromkeys(words))


def code(value: object) -> str:
    """Return a JSON value as Markdown code."""
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
            entries = _plural(describe_type(schema.get("items", {}), definitions))
            text = f"array of {entries}" + _limits(schema, "minItems", "maxItems", " entries")
            return text.replace(") (", "; ")
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


def _limits(schema: Schema, lower: str, upper: str, unit: str = "") -> str:
    match schema.get(lower), schema.get(upper):
        case None, None:
            return ""
        case None, limit:
            return f" (at most {limit}{unit})"
        case limit, None:
            return f" (at least {limit}{unit})"
        case lowest, highest:
            return f" ({lowest} to {highest}{unit})"
