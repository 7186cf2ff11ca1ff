"""Explain why the grammar library rejected a grammar."""

import json
import re

from reprise.server.errors import shortened

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
