"""Check JSON schemas before the grammar library compiles them.

These checks refuse schemas that are too large, recursive schemas that no finite value satisfies, and keywords
that the library would ignore silently. Whether a schema takes the library too long is found by compiling it.
"""

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from reprise.server.errors import shortened
from reprise.server.validation.constraints.json_schema_nodes import Node, children, with_definitions
from reprise.server.validation.constraints.json_schema_recursion import find_endless
from reprise.server.validation.constraints.regex import check_regex
from reprise.server.validation.field_errors import field_error

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 50
MAX_PROPERTIES = 500
"""Of optional ones a token of the answer takes up to 14 ms with this many."""

_IGNORED_BY_LIBRARY = {
    "nullable": "add 'null' to type instead",
    "additionalItems": "use prefixItems and items",
    "divisibleBy": "use multipleOf",
    "extends": "use allOf",
    "disallow": "leave it out",
    "x-guidance": "leave it out",
}


def check_schema(schema: dict[str, Any], at: str = "") -> bytes:
    """Refuse a schema that is too large, too complex or endless; return its JSON text.

    at: path from the validated field to the schema, see field_error().
    Raises PydanticCustomError.
    """
    text = check_size(schema, at)
    schema = with_definitions(schema)
    num_properties, has_references = 0, False
    for node, path, depth in _nodes(schema, at):
        if depth > MAX_SCHEMA_DEPTH:
            raise field_error(
                "schema_too_deep",
                f"is nested too deeply; at most {MAX_SCHEMA_DEPTH} levels are allowed",
                at,
            )
        _check_node(node, path)
        num_properties += len(node["properties"]) if isinstance(node.get("properties"), dict) else 0
        has_references |= "$ref" in node
    if num_properties > MAX_PROPERTIES:
        phrase = f"has {num_properties} properties; a schema may have at most {MAX_PROPERTIES}"
        raise field_error("schema_too_large", phrase, at)
    if has_references and (endless := find_endless(schema)) is not None:
        raise field_error("invalid_schema", f"has no end: '{shortened(endless)}' always contains itself", at)
    return text


def check_size(schema: dict[str, Any], at: str = "") -> bytes:
    """Refuse a schema that is too large; return its JSON text. at: see field_error()."""
    # Serializing megabytes takes longer than noticing that they exceed the limit.
    text = to_json(schema) if _is_within(schema, MAX_SCHEMA_BYTES) else b""
    if not 0 < len(text) <= MAX_SCHEMA_BYTES:
        phrase = f"is too large; a schema may have at most {MAX_SCHEMA_BYTES} bytes as JSON"
        raise field_error("schema_too_large", phrase, at)
    return text


def _is_within(value: object, num_bytes: int) -> bool:
    """Return whether a value's JSON could fit into num_bytes. Stop as soon as it cannot."""
    unseen = [value]
    while unseen and num_bytes >= 0:
        value = unseen.pop()
        num_bytes -= 1
        if isinstance(value, str):
            num_bytes -= len(value)
        elif isinstance(value, list):
            num_bytes -= len(value)
            unseen += value[: max(0, num_bytes) + 1]
        elif isinstance(value, dict):
            num_bytes -= sum(map(len, value))
            unseen += value.values() if num_bytes >= 0 else ()
    return num_bytes >= 0


def _nodes(schema: Node, path: str) -> Iterator[tuple[Node, str, int]]:
    """Yield the schema and all schemas in it, each with its path and depth."""
    unseen = [(schema, path, 0)]
    while unseen:
        node, path, depth = unseen.pop()
        yield node, path, depth
        unseen += [(child, path + step, depth + 1) for step, child in children(node)]


def _check_node(node: Node, path: str) -> None:
    for key, instead in _IGNORED_BY_LIBRARY.items():
        if key in node and node[key] is not False:
            raise field_error("unsupported_schema", f"is not supported; {instead}", f"{path}.{key}")
    if isinstance(node.get("items"), list):
        raise field_error("unsupported_schema", "is an array; use prefixItems instead", f"{path}.items")
    patterned = node.get("patternProperties")
    for regex in patterned if isinstance(patterned, dict) else ():
        check_regex(regex, f"{path}.patternProperties")
    if isinstance(node.get("pattern"), str):
        check_regex(node["pattern"], f"{path}.pattern")
