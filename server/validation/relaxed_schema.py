"""Leave out of a JSON schema what the grammar library cannot enforce.

For schemas that are not strict. What is left allows every value that the whole schema allows, and more.
"""

from dataclasses import dataclass, field
from typing import Any

from server.errors import shortened
from server.validation.json_schema_nodes import Node

_ENFORCED = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties"}
    | {"items", "prefixItems", "minItems", "maxItems", "minProperties", "maxProperties", "allOf", "anyOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    | {"pattern", "format", "$ref"}
)
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "$comment", "$id", "$schema", "$defs"}
    | {"definitions", "deprecated", "readOnly", "writeOnly", "discriminator", "$anchor"}
)
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_MAX_DEPTH = 60


@dataclass(slots=True)
class RelaxedSchema:
    """A schema without what cannot be enforced. dropped: the paths of what was left out or widened."""

    schema: Node
    dropped: list[str] = field(default_factory=list)


def relax(schema: Node) -> RelaxedSchema:
    """Return the schema without what cannot be enforced."""
    relaxed = RelaxedSchema({})
    relaxed.schema = _relax(schema, "", relaxed.dropped, 0)
    return relaxed


def _relax(node: Any, path: str, dropped: list[str], depth: int) -> Any:
    if not isinstance(node, dict) or depth > _MAX_DEPTH:
        return node
    node = _modern(node, path, dropped)
    kept: Node = {}
    for key, value in node.items():
        here = f"{path}.{key}"
        if key in _MAPS and isinstance(value, dict):
            kept[key] = {
                name: _relax(child, f"{here}.{shortened(name)}", dropped, depth + 1)
                for name, child in value.items()
            }
        elif key in _LISTS and isinstance(value, list):
            kept[key] = [
                _relax(child, f"{here}[{index}]", dropped, depth + 1) for index, child in enumerate(value)
            ]
        elif key in _SINGLE:
            kept[key] = _relax(value, here, dropped, depth + 1)
        elif key in _ANNOTATIONS:
            kept[key] = value
        elif key not in _ENFORCED or _is_foreign(key, value):
            dropped.append(here.removeprefix("."))
        else:
            kept[key] = value
    return kept


def _is_foreign(key: str, value: Any) -> bool:
    """Return whether a value of a keyword that is otherwise enforced is not: a format, another document."""
    if key == "format":
        return value not in _FORMATS
    return key == "$ref" and not (isinstance(value, str) and value.startswith("#"))


def _modern(node: Node, path: str, dropped: list[str]) -> Node:
    """Return a schema with anyOf for oneOf, and today's keywords for items in an array and for nullable."""
    node = dict(node)
    if isinstance(choices := node.get("oneOf"), list):
        del node["oneOf"]
        dropped.append(f"{path}.oneOf".removeprefix("."))
        if "anyOf" in node:
            node["allOf"] = [*node.get("allOf", []), {"anyOf": choices}]
        else:
            node["anyOf"] = choices
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    node.pop("additionalItems", None)
    if node.pop("nullable", False) is True:
        return {"anyOf": [node, {"type": "null"}]}
    return node
