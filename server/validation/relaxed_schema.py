"""Close the objects of a schema that is not strict, and leave out what the grammar library cannot enforce."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError

from reprise.server.errors import shortened
from reprise.server.validation.json_schema import (
    ANNOTATIONS,
    Node,
    allow_null,
    check_regex,
    check_schema,
    check_size,
    list_of,
    target_of,
    with_definitions,
)

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


_SHAPE = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems"}
)
_COMBINED = _SHAPE | {"allOf", "anyOf", "$ref"}
_LIMITED = _COMBINED | {
    *("patternProperties", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("pattern", "format"),
}
_LEVELS = (_LIMITED, _COMBINED, _SHAPE, frozenset({"type"}))
"""The keywords that are kept: as many as possible."""
_HARMLESS = (ANNOTATIONS - {"$schema"}) | {"example", "$anchor", "id", "xml", "externalDocs"}
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_LISTS = ("allOf", "anyOf", "prefixItems")
_MORE_SINGLE = (
    *("not", "if", "then", "else", "contains", "propertyNames", "additionalItems"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_FOREIGN_REGEX = re.compile(r"\(\?(?:[=!>(]|<[=!])|\\[bBkGAzZ1-9]")
_MAX_DEPTH = 60


@dataclass(slots=True)
class RelaxedSchema:
    """A schema without the parts that cannot be enforced. dropped: paths of parts left out or widened."""

    schema: Node
    dropped: list[str] = field(default_factory=list)

    def paths(self, at: str) -> list[str]:
        """Return the paths of the dropped parts within the request. at: the schema's path there."""
        return [f"{at}.{path}".rstrip(".") for path in self.dropped]


def relaxations(schema: Node, at: str = "") -> Iterator[RelaxedSchema]:
    """Yield relaxed schemas, each less strict than the one before; the last has hardly any rules.

    The grammar library may refuse the first ones. at: see field_error(). Raises PydanticCustomError if the
    schema is too large, or if no value satisfies it.
    """
    check_size(schema, at)
    for level in range(len(_LEVELS)):
        relaxed = relax(schema, level)
        try:
            check_schema(relaxed.schema, at)
        except PydanticCustomError as fault:
            if fault.type == "invalid_schema":
                raise
        else:
            yield relaxed


def relax(schema: Node, level: int = 0) -> RelaxedSchema:
    """Return the schema without parts that cannot be enforced. level: index of the keywords to keep."""
    if level == len(_LEVELS) - 1:
        return RelaxedSchema({"type": schema["type"]} if schema.get("type") in _TYPES else {}, [""])
    relaxed, root = RelaxedSchema({}), modern(with_definitions(schema))
    relaxed.schema = _Relaxation(root, _LEVELS[level], relaxed.dropped).relax(root, "", 0)
    return relaxed


class _Relaxation:
    """The relaxation of one schema. kept: the keywords to keep. dropped: gets the paths of the others."""

    def __init__(self, root: Node, kept: frozenset[str], dropped: list[str]) -> None:
        self._root = root
        self._kept = kept
        self._dropped = dropped

    def relax(self, node: Any, path: str, depth: int) -> Any:
        """Return a subschema without the parts that cannot be enforced. path: its place."""
        if not isinstance(node, dict) or depth > _MAX_DEPTH:
            return node
        node = self._without_one_of(node, path)
        kept: Node = {}
        for key, value in node.items():
            here = f"{path}.{key}"
            if key in _HARMLESS and key not in _MAPS:
                kept[key] = value
            elif key not in (*self._kept, *_HARMLESS) or not self._is_enforced(key, value, node):
                self._drop(here)
            elif key in _MAPS and isinstance(value, dict):
                kept[key] = {
                    name: self.relax(child, f"{here}.{shortened(name)}", depth + 1)
                    for name, child in value.items()
                }
            elif key in _LISTS and isinstance(value, list):
                kept[key] = [
                    self.relax(child, f"{here}[{index}]", depth + 1) for index, child in enumerate(value)
                ]
            else:
                kept[key] = self.relax(value, here, depth + 1) if key in _SINGLE else value
        if "patternProperties" in node and "patternProperties" not in kept:
            # What they allow is not to be refused as additional.
            kept.pop("additionalProperties", None)
        return kept

    def _drop(self, path: str) -> None:
        self._dropped.append(path.removeprefix("."))

    def _is_enforced(self, key: str, value: Any, node: Node) -> bool:
        """Return whether a value of a keyword that is otherwise enforced is, too."""
        match key:
            case "format":
                return value in _FORMATS
            case "pattern":
                return _is_plain(value)
            case "patternProperties":
                return isinstance(value, dict) and all(map(_is_plain, value))
            case "$ref":
                is_pointer = isinstance(value, str) and value.startswith("#/")
                return value == "#" or (is_pointer and target_of(self._root, node) is not None)
            case "type":
                return all(isinstance(kind, str) and kind in _TYPES for kind in _listed(value))
            case "required" | "allOf":
                return isinstance(value, list)
            case "enum" | "anyOf":
                return isinstance(value, list) and bool(value)
            case "minProperties" | "maxProperties":
                # The library counts properties only if none of them is optional.
                properties = node.get("properties")
                names = properties if isinstance(properties, dict) else {}
                return all(name in list_of(node.get("required")) for name in names)
        return True

    def _without_one_of(self, node: Node, path: str) -> Node:
        """Return a schema with anyOf for oneOf."""
        if not isinstance(choices := node.get("oneOf"), list):
            return node
        self._drop(f"{path}.oneOf")
        node = {key: value for key, value in node.items() if key != "oneOf"}
        if "anyOf" in node:
            return {**node, "allOf": [*list_of(node.get("allOf")), {"anyOf": choices}]}
        return {**node, "anyOf": choices}


def modern(node: Any, depth: int = 0) -> Any:
    """Convert a schema of any draft to the keywords of draft 2020-12."""
    if not isinstance(node, dict) or depth > _MAX_DEPTH:
        return node
    node = {key: value for key, value in node.items() if key != "$schema"}
    for key, value in node.items():
        if key in (*_MAPS, "dependentSchemas") and isinstance(value, dict):
            node[key] = {name: modern(child, depth + 1) for name, child in value.items()}
        elif isinstance(value, list) and key in (*_LISTS, "oneOf", "items"):
            node[key] = [modern(child, depth + 1) for child in value]
        elif key in _SINGLE or key in _MORE_SINGLE:
            node[key] = modern(value, depth + 1)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    node.pop("additionalItems", None)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and limit in node:
            node[exclusive] = node.pop(limit)
    if isinstance(needs := node.get("dependencies"), dict):
        del node["dependencies"]
        node["dependentRequired"] = {name: need for name, need in needs.items() if isinstance(need, list)}
        node["dependentSchemas"] = {name: need for name, need in needs.items() if isinstance(need, dict)}
    return allow_null(node) if node.pop("nullable", False) is True else node


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_plain(regex: object) -> bool:
    """Return whether the library takes a regular expression, as far as can be told from its text."""
    if not isinstance(regex, str) or _FOREIGN_REGEX.search(regex):
        return False
    try:
        check_regex(regex)
    except PydanticCustomError:
        return False
    return True
