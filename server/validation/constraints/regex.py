"""Check the length of regular expressions, and find their atoms. Their cost is found by compiling them."""

import re

from reprise.server.validation.field_errors import field_error

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
