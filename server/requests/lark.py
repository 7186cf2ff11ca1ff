"""Check grammars, and write rules in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Mapping
from json import JSONDecoder
from typing import Any

from reprise.server.requests.fields import field_error
from reprise.server.requests.json_schema import check_schema

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Spacing of JSON, the same as in the prompts that models see."""
ANY_TEXT = "/(?s:.)*/"

MAX_LARK_CHARACTERS = 16_384
MAX_LARK_LINES = 1000
MAX_LARK_REPEATS = 1000

_EMBEDDED = re.compile(r"%json\s*")
_LARK_REPEAT = re.compile(r"[{~]\s*(\d*)\s*(?:(?:,|\.\.)\s*(\d*))?")
_LARK_OPTION = re.compile(r"^\s*[?!\w-]+\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)


def check_lark(given: str) -> None:
    """Refuse a Lark grammar beyond the limits."""
    if len(given) > MAX_LARK_CHARACTERS or given.count("\n") >= MAX_LARK_LINES:
        most = f"at most {MAX_LARK_CHARACTERS} characters and {MAX_LARK_LINES} lines are allowed"
        raise field_error("invalid_value", f"is too long; {most}")
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


def json_rule(schema: object) -> str:
    """Return the Lark expression for JSON that satisfies a schema."""
    styled = {**schema, "x-guidance": JSON_STYLE} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(styled)}"


def lark_rule(grammar: str) -> str:
    """Return the Lark expression for text that a nested Lark grammar matches."""
    return f"%lark {{\n{grammar}\n}}"


_TO_ESCAPE = re.compile(r"\\?\n|\\.|/")
_ESCAPED = {"\n": "\\n", "\\\n": "\\n", "/": "\\/"}


def escape_regex(regex: str) -> str:
    r"""Escape the slashes and line breaks of a regular expression, so that it can stand between slashes."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), regex)


def text_patterns(schema: Mapping[str, Any]) -> list[str]:
    """Return regular expressions in Lark; a string that satisfies the schema matches all of them."""
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
    return found or [ANY_TEXT]


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_PLAIN = r'[^"\\\x00-\x1f]'
_SPACE = r" \t\r\n\f\v"
_TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<comment>//[^\n]*|\#[^\n]*)'
    r"|/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[a-z]*)"
    r"|%import[ \t]+common\.(?P<common>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?"
    r"|(?P<name>\b_?[A-Z][A-Z0-9_]*\b)|(?P<special>%\w+|[&~<]|\w\[)"
)
_COMMON = {
    "LF": '"\\n"',
    "CR": '"\\r"',
    "NEWLINE": '("\\r"? "\\n")+',
    "WS": r"/[ \t\f\r\n]/+",
    "WS_INLINE": r"/[ \t]/+",
    "DIGIT": "/[0-9]/",
    "INT": "/[0-9]/+",
    "LETTER": "/[a-zA-Z]/",
    "WORD": "/[a-zA-Z]/+",
    "CNAME": "/[a-zA-Z_]/ /[a-zA-Z0-9_]/*",
}


def escape_lark(grammar: str) -> str:
    """Rewrite a grammar so that it matches the same texts within a JSON string, where they are escaped.

    Raises ValueError if a part of it cannot be rewritten.
    """
    return _TOKEN.sub(_escape_token, grammar)


def _escape_token(match: re.Match[str]) -> str:
    kind = match.lastgroup
    if kind == "comment":
        return match[0]
    if kind == "special":
        raise ValueError(f"has {match[0]!r}, which cannot stand inside a JSON string")
    if kind == "string":
        if match[0].endswith("i"):
            raise ValueError("has a string without regard to case, which cannot stand inside a JSON string")
        shown = [_literal(character) for character in json.loads(match[0])]
        return f"({' '.join(shown)})" if shown else '""'
    if kind == "name":
        return _rule_name(match[0])
    if match["common"] is not None:
        if match["common"] not in _COMMON:
            raise ValueError(f"imports common.{match['common']}, which is not known here; define it")
        return f"{_rule_name(match['alias'] or match['common'])}: {escape_lark(_COMMON[match['common']])}"
    return f"({_escape_regex(match['regex'], 's' in match['flags'])})"


def _rule_name(terminal: str) -> str:
    return f"t_{terminal.lower()}"


def _escape_regex(regex: str, dot_is_all: bool) -> str:
    """Rewrite a regex as rules for the same texts, escaped. dot_is_all: whether dots match line breaks."""
    written: list[str] = []
    dots = [dot_is_all]
    index = 0
    while index < len(regex):
        character = regex[index]
        if character == "(":
            group = re.compile(r"\((?:\?(?P<flags>s?):|\?P?<\w+>)?(?!\?)").match(regex, index)
            if group is None:
                raise ValueError("has a regular expression with a group that cannot stand in a JSON string")
            dots.append(group["flags"] == "s" or dots[-1])
            written.append("(")
            index = group.end()
        elif character == ")":
            dots.pop()
            if not dots:
                raise ValueError("has a regular expression with a group that is not open")
            written.append(")")
            index += 1
        elif (operator := re.compile(r"[|*+?]|\{\d*,?\d*\}").match(regex, index)) is not None:
            written.append(operator[0])
            index = operator.end()
        else:
            end = _end_of_atom(regex, index)
            written.append(_escape_atom(regex[index:end], dots[-1]))
            index = end
    # An alternative or a group may be empty in a regular expression, but not in a rule.
    return re.sub(r"(?<=[(|]) *(?=[)|])|^ *(?=\|)|(?<=\|) *$", '""', " ".join(written)) or '""'


def _end_of_atom(regex: str, index: int) -> int:
    """Return the end index of the escape, character class or single character at an index."""
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


def _escape_atom(atom: str, dot_is_all: bool) -> str:
    """Return a rule for the escaped form of an atom's matches."""
    if atom in "^$":
        return '""'
    if atom == ".":
        return _any_of(r"[\s\S]" if dot_is_all else r"[^\n]")
    if atom in (r"\s", r"\S"):
        return _any_of(f"[{_SPACE}]" if atom == r"\s" else f"[^{_SPACE}]")
    if len(atom) == 1:
        return _literal(atom)
    return _any_of(atom if atom.startswith("[") else f"[{atom}]")


def _any_of(characters: str) -> str:
    """Return a rule for the escaped form of each character that a class matches."""
    try:
        member = re.compile(characters)
    except re.error as fault:
        raise ValueError(f"has a regular expression that cannot stand in a JSON string: {fault}") from None
    escaped = [json.dumps(shown) for plain, shown in _ESCAPES.items() if member.fullmatch(plain)]
    plain = [f"/[{characters}&&{_PLAIN}]/"] if any(map(member.fullmatch, map(chr, range(32, 0x180)))) else []
    if not escaped and not plain:
        raise ValueError("has a regular expression that matches nothing")
    return f"({' | '.join([*plain, *escaped])})"


def _literal(character: str) -> str:
    return json.dumps(json.dumps(character, ensure_ascii=False)[1:-1], ensure_ascii=False)
