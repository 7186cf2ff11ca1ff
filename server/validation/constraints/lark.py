"""Check Lark grammars before they are compiled."""

import re
from json import JSONDecoder

from reprise.server.validation.constraints.json_schema import check_schema
from reprise.server.validation.field_errors import field_error

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
