"""Make the grammar rules of tool calls, for each format, in llguidance's dialect of Lark.

<[7]> is the token 7, %json a schema. A JSON object of arguments is enforced by its schema. Where every
argument has tags of its own, a value is enforced by its own schema: as text if it is a string, else as JSON.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine.model.markers import Marker, Markers
from server.tool_formats.formats import BREAK, DIGITS, CallFormat, JsonFormat, TaggedFormat
from server.tool_formats.json_lark import escape_lark
from server.tool_formats.values import STRING, find_types
from server.validation.json_schema_alternatives import constrains_besides
from server.validation.json_schema_nodes import list_of

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Spacing of JSON, the same as in the prompts that models see."""

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_ANY_TEXT = "/(?s:.)*/"
_STRING_LIMITS = ("pattern", "minLength", "maxLength")
_STRING_WORDS = ("type", "enum", "const", *_STRING_LIMITS)
_OBJECT_WORDS = ("type", "properties", "required", "additionalProperties", "propertyOrdering")

Tools = Sequence[tuple[str, dict[str, Any]]]
"""(name, schema of the arguments) for each tool."""


class UnenforceableError(ValueError):
    """A schema cannot be enforced in the format. tool: its index. The message says why."""

    def __init__(self, tool: int, reason: str) -> None:
        super().__init__(reason)
        self.tool = tool


class CallGrammar:
    """The rules of one request's tool calls.

    enforced: names of the tools whose arguments must follow their schemas. strict: those for which nothing of
    a schema may be left out. larks: the grammars of an argument `input`, by the names of the tools.
    """

    def __init__(
        self,
        call_format: CallFormat,
        markers: Markers,
        tools: Tools,
        enforced: Collection[str],
        strict: Collection[str],
        larks: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._format = call_format
        self._markers = markers
        self._tools = tools
        self._enforced = enforced
        self._strict = strict
        self._larks = larks

    def rules(self, is_parallel: bool) -> list[str]:
        """Return the rules of calls. Raises UnenforceableError.

        `section`: all calls between two markers. `more`: the same without the start marker. `calls`: one
        section, or several.
        """
        layout, markers = self._format, self._markers
        start, end = self.start, marker_tokens(markers.call_end)
        if layout.is_one_per_section or not is_parallel:
            inner = "call"
        else:
            inner = f"call ({self.text(layout.separator)} call)*"
        several = is_parallel and layout.is_one_per_section
        names = " | ".join(f"call_{index}" for index in range(len(self._tools)))
        rules = [
            "calls: section (SPACE section)*" if several else "calls: section",
            f"section: {start} more",
            f"more: {self.text(layout.opening)} {inner} {self.text(layout.closing)} {end}",
            f"call: {names}",
        ]
        for index in range(len(self._tools)):
            rules += self._call(index)
        return rules

    @property
    def start(self) -> str:
        """The start marker: a token if it is one, else text, which the model may write in other ways."""
        start = self._markers.call_start
        if start is None or len(start.tokens) == 1:
            return marker_tokens(start)
        return json.dumps(start.text, ensure_ascii=False)

    def text(self, text: str) -> str:
        """Return the expression for text that the format writes, with its special tokens as such."""
        tokens = {marker.text: marker for marker in self._markers.all if len(marker.tokens) == 1}
        signs = {BREAK: "/\\n?/", DIGITS: "/[0-9]{1,4}/"}
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
        """Yield the rules of one tool's calls."""
        (name, schema), layout = self._tools[index], self._format
        if isinstance(layout, JsonFormat):
            shown = schema if name in self._enforced else ANY_ARGUMENTS
            yield (
                f"call_{index}: {self.text(layout.before + name + layout.between)} arguments_{index} "
                f"{self.text(layout.after)}"
            )
            yield from json_arguments(index, shown, self._larks.get(name))
        else:
            head = self.text(layout.before + name + layout.after_name)
            yield f"call_{index}: {head} arguments_{index} {self.text(layout.after)}"
            if name in self._larks:
                key = self.text(layout.before_key + "input" + layout.after_key)
                end = self.text(layout.value_end + layout.after_value)
                yield f"arguments_{index}: {key} input_{index} {end}"
                yield f"input_{index}: {_lark(self._larks[name])}"
            elif name in self._enforced:
                yield from self._enforced_arguments(index, layout)
            else:
                yield f"arguments_{index}: any_argument*"
                yield from self._any_argument(index, layout)

    def _any_argument(self, index: int, layout: TaggedFormat) -> Iterator[str]:
        # Defined once: the first tool without an enforced schema brings it.
        known = (self._enforced, self._larks)
        first = next(i for i, (name, _) in enumerate(self._tools) if all(name not in one for one in known))
        if index == first:
            key = f'{self.text(layout.before_key)} /[^<>"\\n]+/ {self.text(layout.after_key)}'
            yield f"any_argument: {key} any_value {self.text(layout.after_value)}"
            yield f"any_value[lazy]: {self._until_end(layout, _ANY_TEXT)}"

    def _enforced_arguments(self, index: int, layout: TaggedFormat) -> Iterator[str]:
        name, schema = self._tools[index]
        is_strict = name in self._strict
        if is_strict and constrains_besides(schema, *_OBJECT_WORDS):
            raise UnenforceableError(
                index, "has keywords beside its properties that this format cannot follow"
            )
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = [key for key in list_of(schema.get("required")) if isinstance(key, str)]
        keys = [*properties, *(key for key in required if key not in properties)]
        parts = []
        for number, key in enumerate(keys):
            if any(character in key for character in '<>"\n'):
                raise UnenforceableError(index, "has a property whose name this format cannot write")
            rule = f"value_{index}_{number}"
            head = self.text(layout.before_key + key + layout.after_key)
            argument = f"{head} {rule} {self.text(layout.after_value)}"
            parts.append(argument if key in required else f"({argument})?")
            yield from self._value(index, rule, properties.get(key, {}), is_strict, layout)
        yield f"arguments_{index}: " + (" ".join(parts) or '""')

    def _value(
        self, index: int, rule: str, schema: object, is_strict: bool, layout: TaggedFormat
    ) -> Iterator[str]:
        """Yield the rules of a value and its end tag."""
        root = self._tools[index][1]
        types = find_types(schema, root)
        if schema is False:
            raise UnenforceableError(index, "has a property that allows no value")
        if types is None or "string" not in types:
            if types is None and is_strict and schema not in ({}, True):
                raise UnenforceableError(index, "has a property without a type")
            if types is None:
                yield f"{rule}[lazy]: {self._until_end(layout, _ANY_TEXT)}"
            else:
                yield f"{rule}: json_{rule} {self.text(layout.value_end)}"
                yield f"json_{rule}: {json_rule(_within(root, schema))}"
            return
        node = schema if isinstance(schema, dict) else {}
        if types == STRING and not constrains_besides(node, *_STRING_WORDS):
            texts = [node["const"]] if "const" in node else node.get("enum")
            if isinstance(texts, list):
                choices = " | ".join(
                    json.dumps(f"{text}{layout.value_end}", ensure_ascii=False) for text in texts
                )
                yield f"{rule}: {choices}"
            else:
                yield f"{rule}[lazy]: {self._until_end(layout, *_patterns(node))}"
            return
        if is_strict and (types == STRING or constrains_besides(node, "type")):
            raise UnenforceableError(index, "has a property whose schema this format cannot follow")
        yield f"{rule}[lazy]: {self._until_end(layout, _ANY_TEXT)}"

    def _until_end(self, layout: TaggedFormat, *patterns: str) -> str:
        """Return the expression for text that matches all patterns, together with the end tag."""
        end = json.dumps(layout.value_end, ensure_ascii=False)
        return " & ".join(f"({pattern} {end})" for pattern in patterns)


def marker_tokens(marker: Marker | None) -> str:
    """Return the expression for a marker's tokens, in this order."""
    return "" if marker is None else " ".join(f"<[{token}]>" for token in marker.tokens)


def json_rule(schema: object) -> str:
    """Return the expression for JSON of a schema."""
    styled = {**schema, "x-guidance": JSON_STYLE} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(styled)}"


def json_arguments(index: int, schema: object, lark: str | None) -> list[str]:
    """Return the rules of a JSON object. lark: the grammar of its only member, `input`, if there is one."""
    if lark is None:
        return [f"arguments_{index}: {json_rule(schema)}"]
    return [
        f'arguments_{index}: "{{\\"input\\": \\"" input_{index} "\\"}}"',
        f"input_{index}: {_lark(escape_lark(lark))}",
    ]


def _lark(grammar: str) -> str:
    """Return the expression for text of a nested grammar."""
    return f"%lark {{\n{grammar}\n}}"


def escape_regex(regex: str) -> str:
    r"""Escape the slashes and line breaks of a regular expression, so that it can stand between slashes."""
    escaped, is_escaped = "", False
    for character in regex:
        if character == "\n":
            character = "n" if is_escaped else "\\n"
        elif character == "/" and not is_escaped:
            character = "\\/"
        is_escaped = character == "\\" and not is_escaped
        escaped += character
    return escaped


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    """Return regular expressions that a string of the schema matches."""
    found = []
    if isinstance(pattern := schema.get("pattern"), str):
        # JSON schemas search for a pattern, a grammar matches all of the text.
        start = "" if pattern.startswith("^") else "(?s:.)*"
        end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.)*"
        body = pattern.removeprefix("^")
        body = body.removesuffix("$") if not end else body
        found.append(f"/{start}({escape_regex(body)}){end}/")
    if "minLength" in schema or "maxLength" in schema:
        found.append(f"/(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/")
    return found or [_ANY_TEXT]


def _within(root: dict[str, Any], schema: object) -> object:
    """Return the schema of a property as a document of its own, with what its references name."""
    moved, has_references = _move_references(schema)
    if not has_references or not isinstance(moved, dict):
        return moved
    return {**moved, "$defs": {"root": _move_references(root)[0]}}


def _move_references(node: Any) -> tuple[Any, bool]:
    """Return a schema whose references point into #/$defs/root, and whether there are any."""
    if isinstance(node, list):
        moved = [_move_references(child) for child in node]
        return [child for child, _ in moved], any(has for _, has in moved)
    if not isinstance(node, dict):
        return node, False
    result, found = {}, False
    for key, child in node.items():
        if key == "$ref" and isinstance(child, str) and child.startswith("#"):
            result[key], found = f"#/$defs/root{child[1:]}", True
        else:
            result[key], has = _move_references(child)
            found |= has
    return result, found
