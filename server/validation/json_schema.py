"""Check JSON schemas, regular expressions and grammars before the grammar library compiles them.

These checks refuse schemas that are too large, recursive schemas that no finite value satisfies, and keywords
that the library would ignore silently. Whether a schema takes the library too long is found by compiling it.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from json import JSONDecoder
from typing import Any
from urllib.parse import unquote

from pydantic_core import to_json

from reprise.server.errors import shortened
from reprise.server.validation.fields import field_error

MAX_REGEX_CHARACTERS = 4096


def check_regex(regex: str, at: str = "") -> None:
    """Refuse a regular expression that is too long. at: see field_error()."""
    if len(regex) > MAX_REGEX_CHARACTERS:
        raise field_error(
            "invalid_value", f"has {len(regex)} characters; at most {MAX_REGEX_CHARACTERS} are allowed", at
        )


def end_of_atom(regex: str, index: int) -> int:
    """Return the index after the escape, character class or single character that begins at an index."""
    if regex[index] == "\\":
        named = re.compile(r"\\[pPxuU]\{[^}]*\}").match(regex, index)
        return named.end() if named else index + 2
    if regex[index] != "[":
        return index + 1
    depth = 0
    while index < len(regex):
        if regex[index] == "\\":
            index += 1
        elif regex[index] == "[":
            depth += 1
            # A closing bracket right after the opening one is a member of the class.
            index += 1 if regex.startswith("]", index + 1) else 2 if regex.startswith("^]", index + 1) else 0
        elif regex[index] == "]":
            depth -= 1
            if not depth:
                return index + 1
        index += 1
    return index


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


def find_endless(schema: Node) -> str | None:
    """Return the path of a schema whose every value would contain another one; None if there is none."""
    paths: dict[int, str] = {}
    nodes: dict[int, Node] = {}
    holders: defaultdict[int, list[int]] = defaultdict(list)
    unseen = [("", schema)]
    while unseen:
        path, node = unseen.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)], paths[id(node)] = node, path
        found = list(children(node))
        if (target := target_of(schema, node)) is not None:
            found.append((node["$ref"], target))
        for step, child in found:
            holders[id(child)].append(id(node))
            unseen.append((step if step.startswith("#") else path + step, child))
    ended: set[int] = set()
    # Checked from the end: the schemas found last lie deepest, and the others mostly depend on them.
    waiting = list(nodes)
    while waiting:
        key = waiting.pop()
        if key not in ended and _has_end(schema, nodes[key], ended):
            ended.add(key)
            waiting += holders[key]
    return next((paths[key] or "#" for key in nodes if key not in ended), None)


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
    return _may_be_scalar(node) or _has_finite_members(node, ends)


def _may_be_scalar(node: Node) -> bool:
    """Return whether a value need not be an object or an array, or is one of a finite list of values."""
    kinds = node.get("type")
    if "const" in node or "enum" in node:
        return True
    holds_objects = "object" in (kinds if isinstance(kinds, list) else [kinds])
    holds_arrays = "array" in (kinds if isinstance(kinds, list) else [kinds])
    if kinds is None or (isinstance(kinds, list) and len(kinds) > holds_objects + holds_arrays):
        return True
    return not holds_objects and not holds_arrays


def _has_finite_members(node: Node, ends: Any) -> bool:
    """Return whether the members that this schema requires of an object or array can be finite."""
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    members = node.get("properties")
    members = members if isinstance(members, dict) else {}
    names = [name for name in list_of(node.get("required")) if isinstance(name, str)]
    object_ends = all(ends(members.get(name, node.get("additionalProperties"))) for name in names)
    first = list_of(node.get("prefixItems"))
    num_items = node.get("minItems", 0)
    num_items = num_items if isinstance(num_items, int) else 0
    array_ends = all(map(ends, first[:num_items])) and (num_items <= len(first) or ends(node.get("items")))
    return ("object" in kinds and object_ends) or ("array" in kinds and array_ends)


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


MAX_LARK_CHARACTERS = 16_384
MAX_LARK_LINES = 1000
MAX_LARK_REPEATS = 1000

_EMBEDDED = re.compile(r"%json\s*")
_LARK_REPEAT = re.compile(r"[{~]\s*(\d*)\s*(?:(?:,|\.\.)\s*(\d*))?")
_LARK_OPTION = re.compile(r"^\s*[?!\w-]+\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)


def check_lark(given: str) -> None:
    """Refuse a Lark grammar beyond the limits."""
    if len(given) > MAX_LARK_CHARACTERS or given.count("\n") >= MAX_LARK_LINES:
        phrase = (
            f"is too long; at most {MAX_LARK_CHARACTERS} characters and {MAX_LARK_LINES} lines are allowed"
        )
        raise field_error("invalid_value", phrase)
    if option := _LARK_OPTION.search(given):
        phrase = f"sets {option[1]} for a rule, which is not supported; leave it out"
        raise field_error("unsupported_value", phrase)
    for match in _LARK_REPEAT.finditer(given):
        if any(int(number[:9]) > MAX_LARK_REPEATS for number in match.groups() if number):
            phrase = f"repeats something too often; at most {MAX_LARK_REPEATS} repetitions are allowed"
            raise field_error("invalid_value", phrase)
    for match in _EMBEDDED.finditer(given):
        try:
            schema, _ = JSONDecoder().raw_decode(given, match.end())
        except (ValueError, RecursionError):
            phrase = "has a %json that is not followed by a JSON schema"
            raise field_error("invalid_value", phrase) from None
        if isinstance(schema, dict):
            check_schema(schema)


MAX_CHARACTERS = 500

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])", re.DOTALL)
_STATE = re.compile(r"\s*<state>.*", re.DOTALL)
_KNOWN = {
    "oneOf constraints are not supported": "uses 'oneOf' with alternatives that may overlap; use 'anyOf', "
    "or give each alternative a distinguishing 'const'",
    "retrieving it failed": "refers to an external schema, and nothing is fetched; put it under '$defs'",
}


def explain_grammar_error(message: str) -> str:
    """Convert the grammar library's message into a phrase that can follow the field's name."""
    if match := _UNIMPLEMENTED.search(message):
        keys = ", ".join(f"'{key}'" for key in json.loads(match[1]))
        return f"uses {keys}, which cannot be enforced; leave it out"
    for known, phrase in _KNOWN.items():
        if known in message:
            return phrase
    detail = shortened(_STATE.sub("", message).strip(), MAX_CHARACTERS).rstrip(".")
    return f"cannot be enforced: {detail}"
