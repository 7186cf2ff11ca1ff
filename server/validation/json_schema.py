"""Check JSON schemas before the grammar library compiles them.

The library compiles most schemas within milliseconds. Refused here are schemas that would take it seconds,
recursive schemas that no finite value satisfies, and keywords that it would silently ignore.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic_core import to_json

from server.errors import shortened
from server.validation.field_errors import field_error
from server.validation.json_schema_alternatives import Alternatives, constrains_besides
from server.validation.json_schema_nodes import Node, children, with_definitions
from server.validation.json_schema_recursion import find_endless
from server.validation.regex import check_regex

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 50
MAX_PROPERTIES = 500
MAX_PATTERNS = 100
MAX_PATTERNS_TO_COMBINE = 8
MAX_MULTIPLE = 10_000
MAX_TEXT_CHARACTERS = 4096
MAX_REFERENCES = 500
MAX_ONE_OF = 200

_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
_IGNORED_BY_LIBRARY = {
    "nullable": "add 'null' to type instead",
    "additionalItems": "use prefixItems and items",
    "divisibleBy": "use multipleOf",
    "extends": "use allOf",
    "disallow": "leave it out",
    "x-guidance": "leave it out",
}


@dataclass
class _Counts:
    """Counts over a whole schema."""

    properties: int = 0
    patterns: int = 0
    references: int = 0
    multiples: list[tuple[int, str]] = field(default_factory=list)
    is_combining: bool = False


def check_schema(schema: dict[str, Any], at: str = "") -> bytes:
    """Refuse a schema that is too large, too complex or endless; return its JSON text.

    at: path from the validated field to the schema, see field_error().
    Raises PydanticCustomError.
    """
    text = check_size(schema, at)
    schema = with_definitions(schema)
    counts = _Counts()
    for node, path, depth in _nodes(schema, at):
        if depth > MAX_SCHEMA_DEPTH:
            raise field_error(
                "schema_too_deep",
                f"is nested too deeply; at most {MAX_SCHEMA_DEPTH} levels are allowed",
                at,
            )
        _check_node(node, path, counts)
    _check_counts(counts, at)
    if counts.is_combining:
        Alternatives(schema).check(at)
    if counts.references and (endless := find_endless(schema)) is not None:
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


def _check_node(node: Node, path: str, counts: _Counts) -> None:
    for key, instead in _IGNORED_BY_LIBRARY.items():
        if key in node and node[key] is not False:
            raise field_error("unsupported_schema", f"is not supported; {instead}", f"{path}.{key}")
    if isinstance(node.get("items"), list):
        raise field_error("unsupported_schema", "is an array; use prefixItems instead", f"{path}.items")
    patterned = node.get("patternProperties")
    patterns = list(patterned) if isinstance(patterned, dict) else []
    for regex in patterns:
        check_regex(regex, f"{path}.patternProperties")
    if len(patterns) > 1:
        # The library checks that they do not overlap, which takes one comparison per pair.
        counts.is_combining = True
    if isinstance(node.get("pattern"), str):
        check_regex(node["pattern"], f"{path}.pattern")
    counts.patterns += len(patterns) + ("pattern" in node) + ("format" in node)
    counts.references += "$ref" in node
    if isinstance(node.get("properties"), dict):
        counts.properties += len(node["properties"])
    counts.is_combining |= _is_combining(node)
    step = node.get("multipleOf")
    if isinstance(step, int | float) and not isinstance(step, bool):
        counts.multiples.append((_digits(step), f"{path}.multipleOf"))
    if isinstance(choices := node.get("oneOf"), list) and len(choices) > MAX_ONE_OF:
        # The library checks that they exclude each other, which takes one comparison per pair.
        phrase = f"has {len(choices)} alternatives; at most {MAX_ONE_OF} are allowed. Use anyOf"
        raise field_error("schema_too_large", phrase, f"{path}.oneOf")
    for key in ("const", "enum"):
        _check_texts(node.get(key), f"{path}.{key}")


def _is_combining(node: Node) -> bool:
    """Return whether several schemas apply to the same value here."""
    has_several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
    return has_several or any(key in node and constrains_besides(node, key) for key in _COMBINING)


def _digits(step: float) -> int:
    """Return a multipleOf value as an integer: for a fraction, its significant digits (0.25 gives 25)."""
    exact = Decimal(str(step)).normalize()
    return (
        abs(int(exact))
        if exact == exact.to_integral_value()
        else abs(int(exact.scaleb(-int(exact.as_tuple().exponent))))
    )


def _check_texts(value: Any, path: str) -> None:
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if isinstance(text, str) and len(text) > MAX_TEXT_CHARACTERS:
            phrase = f"holds a string of {len(text)} characters; at most {MAX_TEXT_CHARACTERS} are allowed"
            raise field_error("invalid_value", phrase, path)


def _check_counts(counts: _Counts, at: str) -> None:
    max_patterns = MAX_PATTERNS_TO_COMBINE if counts.is_combining else MAX_PATTERNS
    combined = ", since several schemas apply to the same value" if counts.is_combining else ""
    for num, limit, what in (
        (counts.properties, MAX_PROPERTIES, "properties"),
        (counts.references, MAX_REFERENCES, "references"),
        (counts.patterns, max_patterns, "patterns and formats"),
    ):
        if num > limit:
            reason = combined if what.startswith("patterns") else ""
            raise field_error(
                "schema_too_large", f"has {num} {what}; a schema may have at most {limit}{reason}", at
            )
    steps = 1
    for multiple, path in counts.multiples:
        steps = steps * max(1, multiple) if counts.is_combining else steps + multiple
        if steps > MAX_MULTIPLE:
            phrase = (
                f"is too large, alone or with the other multipleOf values; at most {MAX_MULTIPLE} is allowed"
            )
            raise field_error("unsupported_schema", phrase, path)
