"""Check regular expressions before the grammar library compiles them: length and nested repetition."""

import re

from server.validation.field_errors import field_error

MAX_REGEX_CHARACTERS = 4096
MAX_REPEATS = 10_000
MAX_NESTED_REPEATS = 1000
"""Limit for nested repetition, counts multiplied: (a{0,10}b){100} has 1000."""

_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")


def check_regex(regex: str, at: str = "") -> None:
    """Refuse an expression that could take long to match. at: see field_error().

    The library has limits of its own, but reaching them would make an answer fail midway.
    """
    if len(regex) > MAX_REGEX_CHARACTERS:
        raise field_error(
            "invalid_value", f"has {len(regex)} characters; at most {MAX_REGEX_CHARACTERS} are allowed", at
        )
    # For each open group: (the product of its nested repeat counts, whether anything in it repeats).
    groups: list[tuple[int, bool]] = [(1, False)]
    last = (1, False)
    index = 0
    while index < len(regex):
        character = regex[index]
        if character == "(":
            groups.append((1, False))
            last = (1, False)
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = _wider(groups[-1], last)
        elif character in "*+?" or (character == "{" and _COUNT.match(regex, index)):
            last, index = _repeated(regex, index, last, at)
            groups[-1] = _wider(groups[-1], last)
            continue
        else:
            index = end_of_atom(regex, index) - 1
            last = (1, False)
        index += 1


def _wider(one: tuple[int, bool], other: tuple[int, bool]) -> tuple[int, bool]:
    return max(one[0], other[0]), one[1] or other[1]


def _repeated(regex: str, index: int, last: tuple[int, bool], at: str) -> tuple[tuple[int, bool], int]:
    """Apply a quantifier to the last atom; return the repeated atom and the quantifier's end."""
    count = 1
    end = index + 1
    if match := _COUNT.match(regex, index):
        numbers = [int(number[:9]) for number in match.groups() if number]
        count, end = max([1, *numbers]), match.end()
    inner, has_inner = last
    if count > MAX_REPEATS or (has_inner and inner * count > MAX_NESTED_REPEATS):
        limit = MAX_NESTED_REPEATS if has_inner else MAX_REPEATS
        what = "a part that itself repeats" if has_inner else "a part"
        phrase = f"repeats {what} up to {inner * count} times; at most {limit} are allowed"
        raise field_error("invalid_value", phrase, at)
    return (inner * count, True), end


def end_of_atom(regex: str, index: int) -> int:
    """Return the end of an escape, a character class or a single character."""
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
