"""Make the grammar rules of tool calls, for each format, in llguidance's dialect of Lark.

<[7]> is token 7, %json a schema. A JSON object of arguments is enforced by its schema. Where every argument
has its own tags, each value is enforced by its own schema: as text if it is a string, else as JSON.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reprise.engine.text.markers import Marker, Markers
from reprise.server.requests.json_schema import ANNOTATIONS, dict_of, has_reference, list_of, target_of
from reprise.server.requests.lark import ANY_TEXT, escape_lark, json_rule, lark_rule, text_patterns
from reprise.server.tools.formats import (
    BREAK,
    DIGITS,
    IS_TEXT,
    TYPE,
    CallFormat,
    ListedFormat,
    TaggedFormat,
)
from reprise.server.tools.values import ALL_TYPES, STRING, escape_entities, find_types

_NUMBER_WORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXT_WORDS = ("pattern", "minLength", "maxLength")
_WORDS: dict[str, tuple[str, ...]] = {
    "string": _TEXT_WORDS,
    "integer": _NUMBER_WORDS,
    "number": _NUMBER_WORDS,
    "boolean": (),
    "null": (),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties", "propertyOrdering"),
}
"""The keywords that are enforced, by the types that they are about."""
_MAX_ITEMS = 1000


@dataclass
class Literals:
    """The grammar rules of one tool's arguments as names and literals.

    text: returns the Lark expression for text that the format writes. root: the schema of the arguments.
    name: the beginning of all names of rules. is_strict: whether to raise ValueError for a part of the schema
        that cannot be enforced.
    """

    layout: ListedFormat
    text: Callable[[str], str]
    root: dict[str, Any]
    name: str
    is_strict: bool
    _rules: list[str] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)

    def rules(self, start: str, lark: str | None) -> Iterator[str]:
        """Yield the rules.

        start: the name of the first rule. lark: a free-form tool's Lark grammar, which its only argument,
            `input`, must match; None for other tools.
        """
        layout = self.layout
        if lark is not None:
            quote = self.text(layout.quotes[0])
            inner = lark_rule(escape_lark(lark) if layout.is_python else lark)
            yield f"{start}: {self.text('input' + layout.after_key)} {quote} {self._add(inner)} {quote}"
        else:
            yield f"{start}: {self._members(self.root, is_bare=True)}"
        yield from self._rules

    def _add(self, expression: str) -> str:
        self._rules.append(f"{self.name}_{len(self._rules)}: {expression}")
        return f"{self.name}_{len(self._rules) - 1}"

    def _value(self, schema: object) -> str:
        if schema is False:
            raise ValueError("has a property that allows no value")
        if not isinstance(schema, dict):
            return self._anything()
        if (target := target_of(self.root, schema)) is not None:
            self._check(schema, "$ref")
            return self._shared(id(target), lambda: self._value(target))
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = [schema["const"]] if "const" in schema else schema["enum"]
            self._check(schema, "const", "enum", "type")
            return f"({' | '.join(map(self._literal, values))})"
        for key in ("anyOf", "oneOf"):
            if choices := list_of(schema.get(key)):
                self._check(schema, key, "type")
                return f"({' | '.join(map(self._value, choices))})"
        parts = list_of(schema.get("allOf"))
        if len(parts) == 1:
            self._check(schema, "allOf")
            return self._value(parts[0])
        types = find_types(schema, self.root)
        if types is None:
            self._check(schema)
            return self._anything()
        self._check(schema, "type", *(word for kind in types for word in _WORDS[kind]))
        kinds = types - {"integer"} if "number" in types else types
        return f"({' | '.join(self._typed(kind, schema) for kind in sorted(kinds))})"

    def _check(self, schema: dict[str, Any], *known: str) -> None:
        if self.is_strict and _constrains_besides(schema, *known):
            raise ValueError("has a property whose schema this format cannot follow")

    def _shared(self, key: int, make: Callable[[], str]) -> str:
        """Return the name of a shared rule, which may be recursive. make: makes its expression."""
        if key not in self._names:
            at = len(self._rules)
            self._names[key] = name = self._add("")
            self._rules[at] = f"{name}: {make()}"
        return self._names[key]

    def _anything(self) -> str:
        kinds = ("string", "number", "boolean", "null", "array", "object")
        return self._shared(0, lambda: " | ".join(self._typed(kind, {}) for kind in kinds))

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        match kind:
            case "string":
                return self._string({word: schema[word] for word in _TEXT_WORDS if word in schema})
            case "boolean":
                return f"({' | '.join(map(self.text, self.layout.constants[:2]))})"
            case "null":
                return self.text(self.layout.constants[2])
            case "array":
                return self._array(schema)
            case "object":
                return f'"{{" {self._members(schema, is_bare=not self.layout.is_python)} "}}"'
        return json_rule({"type": kind, **{w: schema[w] for w in _NUMBER_WORDS if w in schema}})

    def _string(self, schema: dict[str, Any]) -> str:
        """Return the expression for a string of a schema, with its quotes."""
        if self.layout.is_python:
            return json_rule({"type": "string", **schema})
        quote = self.layout.quotes[0]
        mark = self.text(quote)
        patterns = text_patterns(schema)
        if mark.startswith("<["):
            # Text cannot contain the token.
            name = f"{self.name}_{len(self._rules)}".upper()
            self._rules.append(f"{name}: {' & '.join(patterns)}")
            return f"{mark} {name} {mark}"
        ends = " & ".join(f"({pattern} {json.dumps(quote)})" for pattern in patterns)
        self._rules.append(f"{self.name}_{len(self._rules)}[lazy]: {ends}")
        return f"{mark} {self.name}_{len(self._rules) - 1}"

    def _array(self, schema: Mapping[str, Any]) -> str:
        item = self._add(self._value(schema.get("items", True)))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        comma = self.text(self.layout.comma)
        if most == 0:
            return '"[" "]"'
        if least > _MAX_ITEMS or (most or 0) > _MAX_ITEMS:
            raise ValueError(
                f"has an array of more than {_MAX_ITEMS} items, which is too long for this format"
            )
        count = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        several = f"{item} ({comma} {item}){count}"
        return f'"[" {several if least else f"({several})?"} "]"'

    def _members(self, schema: Mapping[str, Any], *, is_bare: bool) -> str:
        """Return the expression for an object's members, in their order. is_bare: names have no quotes."""
        comma, after_key = self.text(self.layout.comma), self.layout.after_key if is_bare else ": "
        properties, required = _members_of(schema)
        if not properties:
            values = schema.get("additionalProperties", True)
            if values is False:
                return '""'
            name = r"/[A-Za-z_][A-Za-z0-9_.-]*/" if is_bare else json_rule({"type": "string"})
            member = self._add(f"{name} {self.text(after_key)} {self._value(values)}")
            return f"({member} ({comma} {member})*)?"
        first, later = '""', '""'
        for key in reversed(properties if self.layout.is_python else sorted(properties)):
            shown = key if is_bare else json.dumps(key, ensure_ascii=False)
            if is_bare and (not key or any(character in key for character in " :{}[],<>()=\"'\n")):
                raise ValueError("has a property whose name this format cannot write")
            member = self._add(f"{self.text(shown + after_key)} {self._value(properties[key])}")
            start = self._add(f"{member} {later}")
            following = f"{comma} {member}"
            if key in required:
                first, later = start, self._add(f"{following} {later}")
            else:
                first, later = self._add(f"{start} | {first}"), self._add(f"({following})? {later}")
        return first

    def _literal(self, value: object) -> str:
        match value:
            case str() if not self.layout.is_python:
                quote = self.text(self.layout.quotes[0])
                inner = f"{json.dumps(value, ensure_ascii=False)} " if value else ""
                return f"{quote} {inner}{quote}"
            case bool() | None:
                return self.text(self.layout.constants[{True: 0, False: 1, None: 2}[value]])
            case str() | int() | float():
                return json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)
        raise ValueError("has an enum of objects or arrays, which this format cannot follow")


def _members_of(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the schemas of all properties that an object schema names, and which of them are required."""
    properties = dict_of(schema.get("properties"))
    required = [key for key in list_of(schema.get("required")) if isinstance(key, str)]
    return {**properties, **{key: True for key in required if key not in properties}}, required


def _constrains_besides(schema: dict[str, Any], *keys: str) -> bool:
    return bool(schema.keys() - ANNOTATIONS - set(keys))


ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}

_BARE = r"/([^\s<&]([^\n<&]*[^\s<&])?)?/"
"""Text that can stand without quotes in a format that has them: nothing of it is dropped or read as a tag."""

Tools = Sequence[tuple[str, dict[str, Any]]]
"""(name, schema of the arguments) for each tool."""


class UnenforceableError(ValueError):
    """A tool's schema cannot be enforced in this format; the message says why. tool: the tool's index."""

    def __init__(self, tool: int, reason: str) -> None:
        super().__init__(reason)
        self.tool = tool


@dataclass(frozen=True)
class CallGrammar:
    """The grammar rules of one request's tool calls.

    enforced: names of the tools whose arguments must follow their schemas.
    strict: names of the tools whose schemas must be enforced in full.
    larks: by tool name, the Lark grammar of a free-form tool's argument `input`.
    """

    call_format: CallFormat
    markers: Markers
    tools: Tools
    enforced: Collection[str]
    strict: Collection[str]
    larks: Mapping[str, str] = field(default_factory=dict)

    def rules(self, is_parallel: bool) -> list[str]:
        """Return the grammar rules of tool calls. Raises UnenforceableError.

        `section`: all calls between two markers. `more`: the same without the start marker. `calls`: one
        section, or several if is_parallel.
        """
        layout, markers = self.call_format, self.markers
        start, end = (self.text(one.text) if one else "" for one in (markers.call_start, markers.call_end))
        if layout.is_one_per_section or not is_parallel:
            inner = "call"
        else:
            inner = f"call ({self.text(layout.separator)} call)*"
        several = is_parallel and layout.is_one_per_section
        names = " | ".join(f"call_{index}" for index in range(len(self.tools)))
        rules = [
            "calls: section (SPACE section)*" if several else "calls: section",
            f"section: {start} more",
            f"more: {self.text(layout.opening)} {inner} {self.text(layout.closing)} {end}",
            f"call: {names}",
        ]
        for index in range(len(self.tools)):
            try:
                rules += self._call(index)
            except ValueError as fault:
                raise UnenforceableError(index, str(fault)) from None
        return rules

    def text(self, text: str, types: frozenset[str] = ALL_TYPES) -> str:
        """Return the Lark expression of fixed text in a call; special tokens in it match as tokens.

        types: the adjacent value's JSON types, for IS_TEXT and TYPE.
        """
        tokens = {marker.text: marker for marker in self._tokens}
        signs = {
            BREAK: "/\\n?/",
            DIGITS: "/[0-9]{1,4}/",
            IS_TEXT: _one_of({"true" if kind == "string" else "false" for kind in types}),
            TYPE: _one_of({"number" if kind == "integer" else kind for kind in types}),
        }
        if not text:
            return '""'
        pattern = "|".join(map(re.escape, [*sorted(tokens, key=len, reverse=True), *signs]))
        expressions = []
        for part in re.split(f"({pattern})", text):
            if part in tokens:
                expressions.append(marker_tokens(tokens[part]))
            elif part:
                expressions.append(signs.get(part) or json.dumps(part, ensure_ascii=False))
        return " ".join(expressions)

    def _call(self, index: int) -> Iterator[str]:
        """Yield the rules of one tool's calls. Raises ValueError if they cannot be enforced."""
        (name, schema), layout = self.tools[index], self.call_format
        head, lark = self.text(layout.before + name + layout.after_name), self.larks.get(name)
        yield f"call_{index}: {head} arguments_{index} {self.text(layout.after)}"
        shown = schema if name in self.enforced else ANY_ARGUMENTS
        if isinstance(layout, ListedFormat):
            literals = Literals(layout, self.text, shown, f"v{index}", is_strict=name in self.strict)
            yield from literals.rules(f"arguments_{index}", lark)
        elif not isinstance(layout, TaggedFormat):
            yield from json_arguments(index, shown, lark)
        elif lark is not None:
            before, after = layout.quotes or ("", "")
            key = self.text(layout.before_key + "input" + layout.after_key + before, STRING)
            end = self.text(after + layout.value_end + layout.after_value)
            yield f"arguments_{index}: {key} input_{index} {end}"
            yield f"input_{index}: {lark_rule(lark)}"
        elif name in self.enforced:
            yield from self._enforced_arguments(index, layout)
        else:
            yield f"arguments_{index}: any_argument*"
            yield from self._any_argument(index, layout)

    def _any_argument(self, index: int, layout: TaggedFormat) -> Iterator[str]:
        # Defined once: the first tool without an enforced schema brings it.
        if any(name not in self.enforced and name not in self.larks for name, _ in self.tools[:index]):
            return
        key = f'{self.text(layout.before_key)} /[^<>"\\n]+/ {self.text(layout.after_key)}'
        yield f"any_argument: {key} any_value {self.text(layout.after_value)}"
        yield from self._text_value("any_value", layout, ANY_TEXT)

    def _enforced_arguments(self, index: int, layout: TaggedFormat) -> Iterator[str]:
        name, schema = self.tools[index]
        is_strict = name in self.strict
        if is_strict and _constrains_besides(schema, *_WORDS["object"], "type"):
            raise ValueError("has keywords beside its properties that this format cannot follow")
        parts = []
        properties, required = _members_of(schema)
        for number, (key, schema_of_key) in enumerate(properties.items()):
            if any(character in key for character in ("\n" if layout.has_entities else '<>"\n')):
                raise ValueError("has a property whose name this format cannot write")
            rule = f"value_{index}_{number}"
            types = find_types(schema_of_key, schema)
            alternatives = []
            for suffix, part, kinds in _by_marked_type(schema_of_key, types, layout):
                written = escape_entities(key) if layout.has_entities else key
                head = self.text(layout.before_key + written + layout.after_key, kinds or ALL_TYPES)
                alternatives.append(f"{head} {rule}{suffix} {self.text(layout.after_value)}")
                yield from self._value(schema, rule + suffix, part, is_strict, layout)
            argument = " | ".join(alternatives)
            parts.append(f"({argument})" if key in required else f"({argument})?")
        yield f"arguments_{index}: " + (" ".join(parts) or '""')

    def _value(
        self, root: dict[str, Any], rule: str, schema: object, is_strict: bool, layout: TaggedFormat
    ) -> Iterator[str]:
        types = find_types(schema, root)
        if schema is False:
            raise ValueError("has a property that allows no value")
        if types is None or "string" not in types:
            if types is None and is_strict and schema not in ({}, True):
                raise ValueError("has a property without a type")
            if types is None:
                yield from self._text_value(rule, layout, ANY_TEXT)
            else:
                yield f"{rule}: {self._quotable(f'json_{rule}', layout)}"
                yield f"json_{rule}: {json_rule(_within(root, schema))}"
            return
        node = schema if isinstance(schema, dict) else {}
        if types == STRING and not _constrains_besides(node, "type", "enum", "const", *_TEXT_WORDS):
            texts = [node["const"]] if "const" in node else node.get("enum")
            if isinstance(texts, list):
                choices = (self._choice(text, layout) for text in texts if isinstance(text, str))
                yield f"{rule}: ({' | '.join(choices)}) {self.text(layout.value_end)}"
            else:
                yield from self._text_value(rule, layout, *text_patterns(node))
            return
        if is_strict and (types == STRING or _constrains_besides(node, "type")):
            raise ValueError("has a property whose schema this format cannot follow")
        yield from self._text_value(rule, layout, ANY_TEXT)

    def _text_value(self, rule: str, layout: TaggedFormat, *patterns: str) -> Iterator[str]:
        """Yield the rules of text that matches all patterns, together with its end tag."""
        if layout.quotes is not None:
            before = json.dumps(layout.quotes[0])
            bare = " & ".join(f"({pattern})" for pattern in (*patterns, _BARE))
            yield f"{rule.upper()}: {bare}"
            yield f"{rule}: {rule.upper()} {self.text(layout.value_end)} | {before} {rule}_quoted"
            end = json.dumps(layout.quotes[1] + layout.value_end)
            yield f"{rule}_quoted[lazy]: " + " & ".join(f"({pattern} {end})" for pattern in patterns)
            return
        end = layout.value_end
        at = min((end.find(marker.text) for marker in self._tokens if marker.text in end), default=-1)
        before = json.dumps(end if at < 0 else end[:at], ensure_ascii=False)
        text = " & ".join(f"({pattern} {before})" for pattern in patterns)
        if at < 0:
            yield f"{rule}[lazy]: {text}"
        else:
            # Text cannot contain the token, so it ends there.
            yield f"{rule.upper()}: {text}"
            yield f"{rule}: {rule.upper()} {self.text(end[at:])}"

    def _quotable(self, expression: str, layout: TaggedFormat) -> str:
        """Return the expression for a value with its end tag, with and without the format's quotes."""
        end = self.text(layout.value_end)
        if layout.quotes is None:
            return f"{expression} {end}"
        before, after = map(json.dumps, layout.quotes)
        return f"({expression} | {before} {expression} {after}) {end}"

    def _choice(self, text: str, layout: TaggedFormat) -> str:
        if layout.quotes is not None and not re.fullmatch(_BARE[1:-1], text):
            text = text.join(layout.quotes)
        return json.dumps(text, ensure_ascii=False)

    @property
    def _tokens(self) -> list[Marker]:
        return [marker for marker in self.markers.all if len(marker.tokens) == 1]


def marker_tokens(marker: Marker | None) -> str:
    """Return the Lark expression for a marker's tokens, in their order; "" for None."""
    return "" if marker is None else " ".join(f"<[{token}]>" for token in marker.tokens)


def json_arguments(index: int, schema: object, lark: str | None) -> list[str]:
    """Return the Lark rules of a tool's arguments as a JSON object.

    index: the tool's. lark: the Lark grammar of the only argument, `input`, of a free-form tool, else None.
    """
    if lark is None:
        return [f"arguments_{index}: {json_rule(schema)}"]
    return [
        f'arguments_{index}: "{{\\"input\\": \\"" input_{index} "\\"}}"',
        f"input_{index}: {lark_rule(escape_lark(lark))}",
    ]


def _one_of(texts: Collection[str]) -> str:
    return f"({' | '.join(map(json.dumps, sorted(texts)))})"


def _by_marked_type(
    schema: object, types: frozenset[str] | None, layout: TaggedFormat
) -> Iterator[tuple[str, object, frozenset[str] | None]]:
    """Yield (suffix of a rule's name, schema, types): for text and for JSON if the format names types."""
    is_named = IS_TEXT in layout.after_key or TYPE in layout.after_key
    if not is_named or not isinstance(schema, dict) or "$ref" in schema or not types or types == STRING:
        yield "", schema, types
        return
    for suffix, kinds in (("_text", types & STRING), ("_json", types - STRING)):
        if kinds:
            yield suffix, {**schema, "type": sorted(kinds)}, kinds


def _within(root: dict[str, Any], schema: object) -> object:
    """Return a property's schema as a separate document, with everything that it references."""
    if not isinstance(schema, dict) or not has_reference(schema):
        return schema
    return {**_moved(schema), "$defs": {"root": _moved(root)}}


def _moved(node: Any) -> Any:
    """Return a schema whose references point into #/$defs/root."""
    if isinstance(node, list):
        return [_moved(child) for child in node]
    if not isinstance(node, dict):
        return node
    is_local = isinstance(node.get("$ref"), str) and node["$ref"].startswith("#")
    moved = {key: _moved(child) for key, child in node.items()}
    return {**moved, "$ref": f"#/$defs/root{node['$ref'][1:]}"} if is_local else moved
