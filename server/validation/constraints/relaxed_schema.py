"""Leave out the parts of a JSON schema that the grammar library cannot enforce.

For schemas that are not strict. A relaxed schema allows every value that the whole schema allows, and more.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError

from reprise.server.errors import shortened
from reprise.server.validation.constraints.json_schema import check_schema, check_size
from reprise.server.validation.constraints.json_schema_nodes import (
    ANNOTATIONS,
    Node,
    allow_null,
    list_of,
    target_of,
    with_definitions,
)
from reprise.server.validation.constraints.regex import check_regex

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
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
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
