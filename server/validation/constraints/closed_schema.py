"""Close the objects of a JSON schema: a small model that may add members adds them for ever.

For schemas that are not strict. Every value of a closed schema is a value of the schema, but not vice versa.
"""

from collections.abc import Iterator
from typing import Any

from reprise.server.validation.constraints.json_schema_nodes import ANNOTATIONS, Node, list_of

_OF_CLOSED = ANNOTATIONS | {"type", "properties", "required", "minProperties", "maxProperties", "nullable"}
"""The keywords beside which an object can be closed: all others may need, or mean, further members."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")


def closed(schema: Node) -> Node:
    """Return the schema with additionalProperties: false wherever an object is fully described.

    Objects within "not", "allOf" and the like stay open. If there is a reference within one of those, the
    schema is returned unchanged.
    """
    if any(_has_reference(part) for part in _fixed_parts(schema)):
        return schema
    result: Node = _close(schema)
    return result


def takes_nothing(schema: Node) -> bool:
    """Return whether a tool's schema lists the properties of its arguments, and there are none."""
    return schema.get("properties") == {} and schema.keys() <= _OF_CLOSED and not schema.get("required")


def _close(node: Any) -> Any:
    """Return a schema with its objects closed, but for the parts that must stay as they are."""
    if not isinstance(node, dict):
        return node
    changed = {key: _close_under(key, value, node) for key, value in node.items()}
    return {**changed, "additionalProperties": False} if _is_described(node) else changed


def _close_under(key: str, value: Any, node: Node) -> Any:
    if key in _MAPS and isinstance(value, dict):
        return {name: _close(child) for name, child in value.items()}
    if isinstance(value, list) and (key == "prefixItems" or _is_alone(key, node)):
        return [_close(child) for child in value]
    return _close(value) if key in _SINGLE else value


def _is_described(node: Node) -> bool:
    """Return whether a schema lists all members that a value needs, and says nothing of others."""
    properties = node.get("properties")
    if not isinstance(properties, dict) or not properties or not node.keys() <= _OF_CLOSED:
        return False
    least = node.get("minProperties", 0)
    has_enough = isinstance(least, int) and least <= len(properties)
    return has_enough and all(name in properties for name in list_of(node.get("required")))


def _is_alone(key: str, node: Node) -> bool:
    """Return whether a combination says all that a schema says, so that its parts can be closed."""
    is_combination = key == "anyOf" or (key == "allOf" and len(list_of(node.get(key))) == 1)
    return is_combination and node.keys() <= ANNOTATIONS | {key, "type", "nullable"}


def _fixed_parts(node: Any) -> Iterator[Any]:
    """Yield the parts of a schema that are not closed, and references that are combined with something."""
    if not isinstance(node, dict):
        return
    if "$ref" in node and not node.keys() <= ANNOTATIONS | {"$ref", "type", "nullable"}:
        yield {"$ref": node["$ref"]}
    for key, value in node.items():
        if key in _MAPS and isinstance(value, dict):
            children = list(value.values())
        elif isinstance(value, list) and (key == "prefixItems" or _is_alone(key, node)):
            children = value
        elif key in _SINGLE:
            children = [value]
        else:
            children = []
            # Values, not schemas, are in these, and whatever they look like.
            if key not in _OF_CLOSED and key not in ("$ref", "enum", "const"):
                yield value
        for child in children:
            yield from _fixed_parts(child)


def _has_reference(part: Any) -> bool:
    """Return whether there is a reference anywhere in a part of a schema."""
    if isinstance(part, dict):
        return "$ref" in part or any(map(_has_reference, part.values()))
    return isinstance(part, list) and any(map(_has_reference, part))
