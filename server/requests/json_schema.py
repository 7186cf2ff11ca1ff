"""Check JSON schemas, and derive closed or relaxed ones that the grammar library can enforce.

generation/grammars.py refuses what cannot be enforced although `strict` asks for it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pydantic_core import PydanticCustomError, to_json

from reprise.server.errors import shortened
from reprise.server.requests.fields import check_num, field_error

MAX_REGEX_CHARACTERS = 4096
MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 50
MAX_PROPERTIES = 500
"""Of optional ones a token of the answer takes up to 14 ms with this many."""
_MAX_DEPTH, _MAX_BRACKETS = 60, 200
"""Parts that lie deeper stay as they are: no grammar is made of them."""

Node = dict[str, Any]
"""A schema that is an object. The schemas true and false need no checks."""

_PLACES = {
    **dict.fromkeys(("items", "additionalProperties", "not", "contains"), "schema"),
    **dict.fromkeys(("if", "then", "else", "propertyNames"), "schema"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), "list"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), "map"),
}
"""What a keyword that has subschemas has them in."""
_OLD_PLACES = {
    **_PLACES,
    **dict.fromkeys(("additionalItems", "unevaluatedItems", "unevaluatedProperties"), "schema"),
    "items": "schema or list",
    "dependentSchemas": "map",
}
"""The same for schemas of any draft."""
_DATA = frozenset({"const", "enum", "default", "examples", "example"})

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$comment", "$id", "$schema", "$defs", "definitions"}
    | {"deprecated", "readOnly", "writeOnly", "discriminator"}
)
"""Keywords that constrain no value."""
_HARMLESS = (ANNOTATIONS - {"$schema"}) | {"example", "$anchor", "id", "xml", "externalDocs"}
_OF_CLOSED = ANNOTATIONS | {"type", "properties", "required", "minProperties", "maxProperties", "nullable"}
"""The keywords beside which an object can be closed: all others may need, or mean, further members."""
_MEMBERS = frozenset({"properties", "required", "additionalProperties", "items", "prefixItems"})
_SHAPE = _MEMBERS | {"type", "enum", "const"}
_COMBINED = _SHAPE | {"allOf", "anyOf", "$ref"}
_SCALAR_LIMITS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "pattern", "format", "minItems", "maxItems"}
)
_LIMITED = _COMBINED | _SCALAR_LIMITS | {"patternProperties", "minProperties", "maxProperties"}
_LEVELS = (_LIMITED, _COMBINED, _SHAPE, frozenset({"type"}))
"""The keywords that a relaxed schema keeps: as many as possible."""
_OF_TYPES = ANNOTATIONS | _MEMBERS | {"type"} | _SCALAR_LIMITS
"""Keywords that constrain no null: those of other types."""
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_FOREIGN_REGEX = re.compile(r"\(\?(?:[=!>(]|<[=!])|\\[bBkGAzZ1-9]")
_IGNORED_BY_LIBRARY = {
    "nullable": "add 'null' to type instead",
    "additionalItems": "use prefixItems and items",
    "divisibleBy": "use multipleOf",
    "extends": "use allOf",
    **dict.fromkeys(("disallow", "x-guidance"), "leave it out"),
}


def list_of(value: object) -> Sequence[Any]:
    """Return the value if it is a list, else an empty sequence."""
    return value if isinstance(value, list) else ()


def dict_of(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def check_regex(regex: str, at: str = "") -> None:
    """Refuse a regular expression that is too long. at: see field_error()."""
    check_num(regex, MAX_REGEX_CHARACTERS, "characters", at)


def target_of(schema: Node, node: Node) -> Node | None:
    """Return the schema that a node's local $ref names, in the whole schema; None if there is none."""
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


def _changed(
    key: str, value: Any, change: Callable[[str, Node], Any], places: Mapping[str, str] = _PLACES
) -> Any:
    """Return a keyword's value with changed subschemas. change: gets their paths too."""
    place = places.get(key, "")
    if isinstance(value, dict) and place == "map":
        return {
            name: change(f".{key}.{shortened(name)}", child) if isinstance(child, dict) else child
            for name, child in value.items()
        }
    if isinstance(value, list) and "list" in place:
        return [
            change(f".{key}[{index}]", child) if isinstance(child, dict) else child
            for index, child in enumerate(value)
        ]
    return change(f".{key}", value) if isinstance(value, dict) and "schema" in place else value


def _children(node: Node) -> list[tuple[str, Node]]:
    """Return the direct subschemas of a schema, each with the path to it."""
    found: list[tuple[str, Node]] = []
    for key in filter(node.__contains__, _PLACES):
        _changed(key, node[key], lambda *child: found.append(child))
    return found


def with_definitions(schema: Node) -> Node:
    """Return the schema with referenced schemas such as #/components/schemas/a moved to $defs."""
    found: dict[str, Any] = {}
    names: dict[str, str] = {}

    def moved(value: Any, depth: int = 0) -> Any:
        if depth > _MAX_BRACKETS:
            return value
        if isinstance(value, list):
            return [moved(child, depth + 1) for child in value]
        if not isinstance(value, dict):
            return value
        node = {key: child if key in _DATA else moved(child, depth + 1) for key, child in value.items()}
        pointer = node.get("$ref")
        if not isinstance(pointer, str) or not pointer.startswith("#/"):
            return node
        if pointer[2:].partition("/")[0] not in _PLACES and (target := target_of(schema, value)) is not None:
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
    return {**whole, "$defs": {**dict_of(whole.get("$defs")), **found}}


def with_null_types(node: Node, depth: int = 0) -> Node:
    """Return the schema with OpenAPI's `nullable: true` expressed as null types."""
    if depth > _MAX_BRACKETS:
        return node
    changed: Node = {}
    for key, value in node.items():
        changed[key] = _changed(key, value, lambda _, child: with_null_types(child, depth + 1))
    return _allow_null(changed)


def _allow_null(node: Node) -> Node:
    """Replace `nullable` by a null type if that is enough, else by a null alternative."""
    if node.pop("nullable", False) is not True:
        return node
    types = node.get("type")
    if not isinstance(types, str | list) or not node.keys() <= _OF_TYPES:
        return {"anyOf": [node, {"type": "null"}]}
    listed = _listed(types)
    return {**node, "type": listed if "null" in listed else [*listed, "null"]}


def modern(node: Node, depth: int = 0) -> Node:
    """Convert a schema of any draft to the keywords of draft 2020-12."""
    if depth > _MAX_DEPTH:
        return node
    node = {
        key: _changed(key, value, lambda _, child: modern(child, depth + 1), _OLD_PLACES)
        for key, value in node.items()
        if key != "$schema"
    }
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
    return _allow_null(node)


def check_schema(schema: Node, at: str = "") -> bytes:
    """Refuse a schema that is too large, complex or endless; return its JSON text. at: see field_error()."""
    text = check_size(schema, at)
    schema = with_definitions(schema)
    num_properties, has_references = 0, False
    unseen = [(schema, at, 0)]
    while unseen:
        node, path, depth = unseen.pop()
        if depth > MAX_SCHEMA_DEPTH:
            phrase = f"is nested too deeply; at most {MAX_SCHEMA_DEPTH} levels are allowed"
            raise field_error("schema_too_deep", phrase, at)
        _check_keywords(node, path)
        num_properties += len(dict_of(node.get("properties")))
        has_references |= "$ref" in node
        unseen += [(child, path + step, depth + 1) for step, child in _children(node)]
    if num_properties > MAX_PROPERTIES:
        phrase = f"has {num_properties} properties; a schema may have at most {MAX_PROPERTIES}"
        raise field_error("schema_too_large", phrase, at)
    if has_references and (endless := find_endless(schema)) is not None:
        raise field_error("invalid_schema", f"has no end: '{shortened(endless)}' always contains itself", at)
    return text


def check_size(schema: Node, at: str = "") -> bytes:
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


def _check_keywords(node: Node, path: str) -> None:
    for key, instead in _IGNORED_BY_LIBRARY.items():
        if key in node and node[key] is not False:
            raise field_error("unsupported_schema", f"is not supported; {instead}", f"{path}.{key}")
    if isinstance(node.get("items"), list):
        raise field_error("unsupported_schema", "is an array; use prefixItems instead", f"{path}.items")
    for regex in dict_of(node.get("patternProperties")):
        check_regex(regex, f"{path}.patternProperties")
    if isinstance(node.get("pattern"), str):
        check_regex(node["pattern"], f"{path}.pattern")


def find_endless(schema: Node) -> str | None:
    """Return the path of a schema that only infinite values satisfy; None if there is none."""
    nodes: dict[int, tuple[str, Node]] = {}
    holders: defaultdict[int, list[int]] = defaultdict(list)
    unseen = [("", schema)]
    while unseen:
        path, node = unseen.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)] = path, node
        found = [(path + step, child) for step, child in _children(node)]
        if (target := target_of(schema, node)) is not None:
            found.append((node["$ref"], target))
        for _, child in found:
            holders[id(child)].append(id(node))
        unseen += found
    ended: set[int] = set()
    # Checked from the end: the schemas found last lie deepest, and the others mostly depend on them.
    waiting = list(nodes)
    while waiting:
        key = waiting.pop()
        if key not in ended and _has_end(schema, nodes[key][1], ended):
            ended.add(key)
            waiting += holders[key]
    return next((path or "#" for key, (path, _) in nodes.items() if key not in ended), None)


def _has_end(schema: Node, node: Node, ended: set[int]) -> bool:
    """Return whether a finite value of this schema exists, given the schemas known to have one."""

    def ends(child: object) -> bool:
        return not isinstance(child, dict) or id(child) in ended

    if (target := target_of(schema, node)) is not None and not ends(target):
        return False
    if not all(map(ends, list_of(node.get("allOf")))):
        return False
    for key in ("anyOf", "oneOf"):
        if (choices := list_of(node.get(key))) and not any(map(ends, choices)):
            return False
    kinds = _listed(node.get("type"))
    holds_objects, holds_arrays = "object" in kinds, "array" in kinds
    if "const" in node or "enum" in node or not kinds or len(kinds) > holds_objects + holds_arrays:
        return True
    members = dict_of(node.get("properties"))
    names = [name for name in list_of(node.get("required")) if isinstance(name, str)]
    if holds_objects and all(ends(members.get(name, node.get("additionalProperties"))) for name in names):
        return True
    first, num_items = list_of(node.get("prefixItems")), node.get("minItems", 0)
    num_items = num_items if isinstance(num_items, int) else 0
    array_ends = all(map(ends, first[:num_items])) and (num_items <= len(first) or ends(node.get("items")))
    return holds_arrays and array_ends


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def closed(schema: Node) -> Node:
    """Return the schema with additionalProperties: false wherever an object is fully described.

    Objects within "not", "allOf" and the like stay open. If there is a reference within one of those, all do.
    """
    fixed: list[Any] = []

    def close(_: str, node: Node) -> Node:
        if "$ref" in node and not node.keys() <= ANNOTATIONS | {"$ref", "type", "nullable"}:
            fixed.append({"$ref": node["$ref"]})
        places = {key: place for key, place in _PLACES.items() if key in node and _is_closable(key, node)}
        # Values, not schemas, are in these, and whatever they look like.
        data = {*places, *_OF_CLOSED, "$ref", "enum", "const"}
        fixed.extend(value for key, value in node.items() if key not in data)
        changed = {key: _changed(key, value, close, places) for key, value in node.items()}
        return {**changed, "additionalProperties": False} if _is_described(node) else changed

    result = close("", schema)
    return schema if has_reference(fixed) else result


def _is_closable(key: str, node: Node) -> bool:
    """Return whether the subschemas of a keyword can be closed."""
    value = node[key]
    match key:
        case "anyOf" | "allOf":
            # Only if the combination repeats all that the schema says.
            is_one = isinstance(value, list) and (key == "anyOf" or len(value) == 1)
            return is_one and node.keys() <= ANNOTATIONS | {key, "type", "nullable"}
        case "items" | "additionalProperties":
            return True
        case "prefixItems":
            return isinstance(value, list)
    return isinstance(value, dict) and _PLACES[key] == "map"


def _is_described(node: Node) -> bool:
    """Return whether a schema lists all members that a value needs, with no rules about others."""
    properties, least = dict_of(node.get("properties")), node.get("minProperties", 0)
    if not properties or not node.keys() <= _OF_CLOSED:
        return False
    has_enough = isinstance(least, int) and least <= len(properties)
    names = list_of(node.get("required"))
    return has_enough and all(isinstance(name, str) and name in properties for name in names)


def has_reference(part: Any) -> bool:
    """Return whether a part of a schema contains a reference."""
    if isinstance(part, dict):
        return "$ref" in part or any(map(has_reference, part.values()))
    return isinstance(part, list) and any(map(has_reference, part))


def takes_nothing(schema: Node) -> bool:
    """Return whether a tool's schema says that it takes no arguments."""
    return schema.get("properties") == {} and schema.keys() <= _OF_CLOSED and not schema.get("required")


@dataclass(slots=True)
class RelaxedSchema:
    """A schema without unenforceable parts. dropped: their paths. num_bytes: its size, once checked."""

    schema: Node
    dropped: list[str] = field(default_factory=list)
    num_bytes: int = 0

    def paths(self, at: str) -> list[str]:
        """Return the paths of the dropped parts within the request. at: the schema's path there."""
        return [f"{at}.{path}".rstrip(".") for path in self.dropped]


def forms(schema: Node) -> Iterator[RelaxedSchema]:
    """Yield the schema itself if it passes check_schema(), then its relaxations that differ from it."""
    try:
        check_schema(schema)
    except PydanticCustomError:
        pass
    else:
        yield RelaxedSchema(schema)
    yield from (form for form in relaxations(schema) if form.dropped or form.schema != schema)


def relaxations(schema: Node, at: str = "") -> Iterator[RelaxedSchema]:
    """Yield ever less strict schemas; the last has hardly any rules.

    Raises PydanticCustomError if the schema is too large, or if no value satisfies it. at: see field_error().
    """
    check_size(schema, at)
    for level in range(len(_LEVELS)):
        relaxed = relax(schema, level)
        try:
            relaxed.num_bytes = len(check_schema(relaxed.schema, at))
        except PydanticCustomError as fault:
            if fault.type == "invalid_schema":
                raise
        else:
            yield relaxed


def relax(schema: Node, level: int = 0) -> RelaxedSchema:
    """Return the schema without parts that cannot be enforced. level: index of the keywords to keep."""
    if level == len(_LEVELS) - 1:
        kept = "type" in schema and _is_enforced(schema, "type", schema)
        return RelaxedSchema({"type": schema["type"]} if kept else {}, [""])
    root, known = modern(with_definitions(schema)), _LEVELS[level] | _HARMLESS
    dropped: list[str] = []

    def relaxed(path: str, node: Node, depth: int = 0) -> Node:
        if depth > _MAX_DEPTH:
            return node
        if isinstance(choices := node.get("oneOf"), list):
            dropped.append(f"{path}.oneOf")
            node = {key: value for key, value in node.items() if key != "oneOf"}
            others = [*list_of(node.get("allOf")), {"anyOf": choices}]
            node |= {"allOf": others} if "anyOf" in node else {"anyOf": choices}
        kept: Node = {}
        for key, value in node.items():
            if key in known and _is_enforced(root, key, node):
                kept[key] = _changed(key, value, lambda step, child: relaxed(path + step, child, depth + 1))
            else:
                dropped.append(f"{path}.{key}")
        if "patternProperties" in node and "patternProperties" not in kept:
            # Properties that they allow must not be refused as additional.
            kept.pop("additionalProperties", None)
        return kept

    return RelaxedSchema(relaxed("", root), [path.removeprefix(".") for path in dropped])


def _is_enforced(root: Node, key: str, node: Node) -> bool:
    """Return whether this value of an enforceable keyword can be enforced. root: the whole schema."""
    value = node[key]
    match key:
        case "format":
            return isinstance(value, str) and value in _FORMATS
        case "pattern":
            return _is_plain(value)
        case "patternProperties":
            return isinstance(value, dict) and all(map(_is_plain, value))
        case "$ref":
            is_pointer = isinstance(value, str) and value.startswith("#/")
            return value == "#" or (is_pointer and target_of(root, node) is not None)
        case "type":
            return all(isinstance(kind, str) and kind in _TYPES for kind in _listed(value))
        case "required" | "allOf":
            return isinstance(value, list)
        case "enum" | "anyOf":
            return isinstance(value, list) and bool(value)
        case "minProperties" | "maxProperties":
            # The library counts properties only if none of them is optional.
            return all(name in list_of(node.get("required")) for name in dict_of(node.get("properties")))
    return True


def _is_plain(regex: object) -> bool:
    """Return whether the library accepts a regular expression, judged by its text."""
    return isinstance(regex, str) and len(regex) <= MAX_REGEX_CHARACTERS and not _FOREIGN_REGEX.search(regex)
