"""Convert the values that models write between tags to JSON, by the schemas of the parameters."""

from typing import Any

from pydantic_core import from_json, to_json

from server.validation.json_schema_nodes import list_of, target_of

STRING = frozenset({"string"})
GUESSED = frozenset({"string", "object", "array"})
"""What a value without a known type may be: JSON objects and arrays are recognized, all else is a string."""

_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_DEPTH = 16
_JSON_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def find_types(schema: object, root: dict[str, Any], depth: int = 0) -> frozenset[str] | None:
    """Return the JSON types that a schema allows; None if it does not say.

    root: the document that the schema's references point into.
    """
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if (target := target_of(root, schema)) is not None:
        return find_types(target, root, depth + 1)
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        return frozenset([kinds] if isinstance(kinds, str) else map(str, kinds)) & _ALL_TYPES or None
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(_JSON_NAMES.get(type(value), "null") for value in values)
    for name in ("anyOf", "oneOf"):
        found = [find_types(choice, root, depth + 1) for choice in list_of(schema.get(name))]
        if found:
            return None if None in found else frozenset().union(*(types for types in found if types))
    for part in list_of(schema.get("allOf")):
        if (types := find_types(part, root, depth + 1)) is not None:
            return types
    return None


def to_json_value(text: str, types: frozenset[str]) -> str:
    """Return a written value as JSON of one of the types; as a string if it is of none of them."""
    if types != STRING:
        try:
            value = from_json(text.strip(), allow_inf_nan=False)
        except ValueError:
            value = _read_word(text.strip().lower(), types)
        for kind in _kinds_of(value):
            if kind in types:
                whole = int(value) if kind == "integer" and isinstance(value, float) else value
                return to_json(whole).decode()
    return to_json(text).decode()


def _read_word(word: str, types: frozenset[str]) -> object:
    """Return the value of a word that is not JSON but means a constant, such as Python's True."""
    constants: dict[str, tuple[str, object]] = {
        "true": ("boolean", True),
        "false": ("boolean", False),
        "none": ("null", None),
        "null": ("null", None),
    }
    kind, value = constants.get(word, ("", word))
    return value if kind in types else word


def _kinds_of(value: object) -> tuple[str, ...]:
    """Return the types of a JSON value other than a string, the narrowest first."""
    match value:
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("integer", "number") if value.is_integer() else ("number",)
        case None:
            return ("null",)
        case dict():
            return ("object",)
        case list():
            return ("array",)
    return ()
