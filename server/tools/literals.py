"""Grammar rules for arguments that are names and literals, made from their schemas. See ListedFormat."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reprise.server.tools.formats import ListedFormat
from reprise.server.tools.lark import escape_lark, json_rule, lark_rule, text_patterns
from reprise.server.tools.values import find_types
from reprise.server.validation.json_schema import constrains_besides, list_of, target_of

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


class Literals:
    """The grammar rules of one tool's arguments, written as names and literals.

    text: returns the Lark expression for text that the format writes. root: the schema of the arguments.
    name: the beginning of all names of rules. is_strict: whether to raise ValueError for a part of the schema
        that cannot be enforced.
    """

    def __init__(
        self,
        layout: ListedFormat,
        text: Callable[[str], str],
        root: dict[str, Any],
        name: str,
        *,
        is_strict: bool,
    ) -> None:
        self._layout = layout
        self._text = text
        self._root = root
        self._name = name
        self._is_strict = is_strict
        self._rules: list[str] = []
        self._references: dict[int, str] = {}
        self._any = ""

    def rules(self, start: str, lark: str | None) -> Iterator[str]:
        """Yield the rules.

        start: the name of the first rule. lark: the Lark grammar of the only argument, `input`, of a
            free-form tool, else None.
        """
        layout = self._layout
        if lark is not None:
            quote = self._text(layout.quotes[0])
            inner = lark_rule(escape_lark(lark) if layout.has_escapes else lark)
            yield f"{start}: {self._text('input' + layout.after_key)} {quote} {self._add(inner)} {quote}"
        else:
            names = (layout.after_key, layout.comma)
            yield f"{start}: {self._members(self._root, names, is_bare=True)}"
        yield from self._rules

    def _add(self, expression: str) -> str:
        """Add a rule; return its name."""
        self._rules.append(f"{self._name}_{len(self._rules)}: {expression}")
        return f"{self._name}_{len(self._rules) - 1}"

    def _value(self, schema: object) -> str:
        """Return the expression for a value of a schema."""
        if schema is False:
            raise ValueError("has a property that allows no value")
        if not isinstance(schema, dict):
            return self._anything()
        if (target := target_of(self._root, schema)) is not None:
            self._check(schema, "$ref")
            return self._reference(target)
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
        types = find_types(schema, self._root)
        if types is None:
            self._check(schema)
            return self._anything()
        self._check(schema, "type", *(word for kind in types for word in _WORDS[kind]))
        kinds = types - {"integer"} if "number" in types else types
        return f"({' | '.join(self._typed(kind, schema) for kind in sorted(kinds))})"

    def _check(self, schema: dict[str, Any], *known: str) -> None:
        if self._is_strict and constrains_besides(schema, *known):
            raise ValueError("has a property whose schema this format cannot follow")

    def _reference(self, target: dict[str, Any]) -> str:
        """Return the name of the rule of a schema that is referred to, perhaps by itself."""
        if id(target) not in self._references:
            at = len(self._rules)
            self._references[id(target)] = name = self._add("")
            self._rules[at] = f"{name}: {self._value(target)}"
        return self._references[id(target)]

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        match kind:
            case "string":
                return self._string({word: schema[word] for word in _TEXT_WORDS if word in schema})
            case "boolean":
                return f"({' | '.join(map(self._text, self._layout.constants[:2]))})"
            case "null":
                return self._text(self._layout.constants[2])
            case "array":
                return self._array(schema)
            case "object":
                names = (":", ",") if self._layout.has_bare_keys else (": ", ", ")
                inner = self._members(schema, names, is_bare=self._layout.has_bare_keys)
                return f'"{{" {inner} "}}"'
        return json_rule({"type": kind, **{w: schema[w] for w in _NUMBER_WORDS if w in schema}})

    def _string(self, schema: dict[str, Any]) -> str:
        """Return the expression for a string of a schema, with its quotes."""
        if self._layout.has_escapes:
            return json_rule({"type": "string", **schema})
        quote = self._layout.quotes[0]
        mark = self._text(quote)
        patterns = text_patterns(schema)
        if mark.startswith("<["):
            # Text cannot contain the token.
            return f"{mark} {self._add_terminal(' & '.join(patterns))} {mark}"
        ends = " & ".join(f"({pattern} {json.dumps(quote)})" for pattern in patterns)
        self._rules.append(f"{self._name}_{len(self._rules)}[lazy]: {ends}")
        return f"{mark} {self._name}_{len(self._rules) - 1}"

    def _add_terminal(self, expression: str) -> str:
        name = f"{self._name}_{len(self._rules)}".upper()
        self._rules.append(f"{name}: {expression}")
        return name

    def _array(self, schema: Mapping[str, Any]) -> str:
        item = self._add(self._value(schema.get("items", True)))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        comma = self._text("," if self._layout.has_bare_keys else ", ")
        if most == 0:
            return '"[" "]"'
        if least > _MAX_ITEMS or (most or 0) > _MAX_ITEMS:
            raise ValueError(
                f"has an array of more than {_MAX_ITEMS} items, which is too long for this format"
            )
        count = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        several = f"{item} ({comma} {item}){count}"
        return f'"[" {several if least else f"({several})?"} "]"'

    def _members(self, schema: Mapping[str, Any], signs: tuple[str, str], *, is_bare: bool) -> str:
        """Return the expression for the members of an object, in their order.

        signs: what follows a name, and what stands between two members. is_bare: names have no quotes.
        """
        after_key, comma = signs
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = [key for key in list_of(schema.get("required")) if isinstance(key, str)]
        keys = list(dict.fromkeys((*properties, *required)))
        if not keys:
            return self._map(schema.get("additionalProperties", True), signs, is_bare=is_bare)
        first, later = '""', '""'
        for key in sorted(keys, reverse=True) if self._layout.is_sorted else reversed(keys):
            shown = key if is_bare else json.dumps(key, ensure_ascii=False)
            if is_bare and (not key or any(character in key for character in " :{}[],<>()=\"'\n")):
                raise ValueError("has a property whose name this format cannot write")
            member = self._add(f"{self._text(shown + after_key)} {self._value(properties.get(key, True))}")
            start = self._add(f"{member} {later}")
            following = f"{self._text(comma)} {member}"
            if key in required:
                first, later = start, self._add(f"{following} {later}")
            else:
                first, later = self._add(f"{start} | {first}"), self._add(f"({following})? {later}")
        return first

    def _map(self, values: object, signs: tuple[str, str], *, is_bare: bool) -> str:
        """Return the expression for members of any name."""
        if values is False:
            return '""'
        name = r"/[A-Za-z_][A-Za-z0-9_.-]*/" if is_bare else json_rule({"type": "string"})
        member = self._add(f"{name} {self._text(signs[0])} {self._value(values)}")
        return f"({member} ({self._text(signs[1])} {member})*)?"

    def _anything(self) -> str:
        """Return the name of the rule of any value."""
        if not self._any:
            at = len(self._rules)
            self._any = self._add("")
            kinds = ("string", "number", "boolean", "null", "array", "object")
            self._rules[at] = f"{self._any}: {' | '.join(self._typed(kind, {}) for kind in kinds)}"
        return self._any

    def _literal(self, value: object) -> str:
        """Return the expression for one value."""
        match value:
            case str() if not self._layout.has_escapes:
                quote = self._text(self._layout.quotes[0])
                return (
                    f"{quote} {json.dumps(value, ensure_ascii=False)} {quote}"
                    if value
                    else f"{quote} {quote}"
                )
            case bool() | None:
                return self._text(self._layout.constants[{True: 0, False: 1, None: 2}[value]])
            case str() | int() | float():
                return json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)
        raise ValueError("has an enum of objects or arrays, which this format cannot follow")
