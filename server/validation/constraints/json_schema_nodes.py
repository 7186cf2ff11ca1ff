"""Walk the subschemas of a JSON schema, and follow its references."""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from reprise.server.errors import shortened

_SINGLE = ("items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_DATA = frozenset({"const", "enum", "default", "examples", "example"})
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$comment", "$id", "$schema", "$defs", "definitions"}
    | {"deprecated", "readOnly", "writeOnly", "discriminator"}
)
"""Keywords that constrain no value."""
_OF_TYPES = ANNOTATIONS | {
    *(
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "format"),
}
"""Keywords that constrain no null: those of other types."""
_MAX_DEPTH = 200

Node = dict[str, Any]
"""A schema that is an object. The schemas true and false need no checks."""


def constrains_besides(node: Node, *keys: str) -> bool:
    """Return whether a schema constrains values by keywords other than these."""
    return bool(node.keys() - ANNOTATIONS - set(keys))


def children(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the direct subschemas of a schema, each with the path to it, such as .properties.name."""
    for key in _SINGLE:
        if isinstance(child := node.get(key), dict):
            yield f".{key}", child
    for key in _LISTS:
        for index, child in enumerate(list_of(node.get(key))):
            if isinstance(child, dict):
                yield f".{key}[{index}]", child
    for key in _MAPS:
        if isinstance(members := node.get(key), dict):
            for name, child in members.items():
                if isinstance(child, dict):
                    yield f".{key}.{shortened(name)}", child


def target_of(schema: Node, node: Node) -> Node | None:
    """Return the schema that a node's local $ref names. schema: the whole document.

    Return None without a $ref, and for a reference to another document or one that cannot be resolved, which
    the grammar library reports.
    """
    pointer = node.get("$ref")
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    found: Any = schema
    for step in pointer[1:].split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found if isinstance(found, dict) else None


def with_definitions(schema: Node) -> Node:
    """Move referenced schemas outside of $defs, as in #/components/schemas, to $defs; return the new schema.

    References to $defs, to subschemas of the schema itself, and to nothing stay as they are.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}

    def moved(value: Any, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, list):
            return [moved(child, depth + 1) for child in value]
        if not isinstance(value, dict):
            return value
        node = {key: child if key in _DATA else moved(child, depth + 1) for key, child in value.items()}
        pointer = node.get("$ref")
        if not isinstance(pointer, str) or not pointer.startswith("#/"):
            return node
        step = pointer[2:].partition("/")[0]
        if step not in (*_SINGLE, *_LISTS, *_MAPS) and (target := target_of(schema, value)) is not None:
            if pointer not in names:
                # A plain name, as pointers escape some characters.
                names[pointer] = name = f"{re.sub(r'[^A-Za-z0-9]', '_', pointer[2:])}_{len(names)}"
                found[name] = moved(target, depth + 1)
            node["$ref"] = f"#/$defs/{names[pointer]}"
        return node

    whole = moved(schema)
    if not found:
        return schema
    whole.pop("components", None)
    own = whole.get("$defs")
    return {**whole, "$defs": {**(own if isinstance(own, dict) else {}), **found}}


def with_null_types(schema: Node) -> Node:
    """Return the schema with null allowed wherever OpenAPI's `nullable: true` allows it."""
    changed: Node = _null_types(schema, 0)
    return changed


def _null_types(node: Any, depth: int) -> Any:
    if not isinstance(node, dict) or depth > _MAX_DEPTH:
        return node
    changed = dict(node)
    for key in _SINGLE:
        if key in changed:
            changed[key] = _null_types(changed[key], depth + 1)
    for key in _LISTS:
        if isinstance(changed.get(key), list):
            changed[key] = [_null_types(child, depth + 1) for child in changed[key]]
    for key in _MAPS:
        if isinstance(changed.get(key), dict):
            changed[key] = {name: _null_types(child, depth + 1) for name, child in changed[key].items()}
    return allow_null(changed) if changed.pop("nullable", False) is True else changed


def allow_null(node: Node) -> Node:
    """Return a schema that also allows null: among its types if that is enough, else as an alternative."""
    types = node.get("type")
    if not isinstance(types, str | list) or not node.keys() <= _OF_TYPES:
        return {"anyOf": [node, {"type": "null"}]}
    listed = types if isinstance(types, list) else [types]
    return {**node, "type": listed if "null" in listed else [*listed, "null"]}


def list_of(value: object) -> Sequence[Any]:
    """Return the value if it is a list, else an empty sequence."""
    return value if isinstance(value, list) else ()
