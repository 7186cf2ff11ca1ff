"""Write the expressions of llguidance's Lark that grammars of tool calls are made of."""

import json
from collections.abc import Mapping
from typing import Any

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Spacing of JSON, the same as in the prompts that models see."""
ANY_TEXT = "/(?s:.)*/"


def json_rule(schema: object) -> str:
    """Return the Lark expression for JSON that satisfies a schema."""
    styled = {**schema, "x-guidance": JSON_STYLE} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(styled)}"


def lark_rule(grammar: str) -> str:
    """Return the Lark expression for text that a nested Lark grammar matches."""
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


def text_patterns(schema: Mapping[str, Any]) -> list[str]:
    """Return the regular expressions in Lark that a string must all match to satisfy a schema."""
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
