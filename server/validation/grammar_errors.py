"""What people are told of a grammar that the library cannot use."""

import json
import re

from server.errors import shortened

MAX_CHARACTERS = 500

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])", re.DOTALL)
_STATE = re.compile(r"\s*<state>.*", re.DOTALL)
_KNOWN = {
    "oneOf constraints are not supported": "uses 'oneOf' with alternatives of which more than one may hold; "
    "use 'anyOf', or tell them apart by a 'const' in each",
    "retrieving it failed": "refers to a schema elsewhere, and nothing is fetched; put it under '$defs'",
}


def explain_grammar_error(message: str) -> str:
    """A phrase that reads on from the field's name, made of the library's own message."""
    if match := _UNIMPLEMENTED.search(message):
        keys = ", ".join(f"'{key}'" for key in json.loads(match[1]))
        return f"uses {keys}, which cannot be enforced; leave it out"
    for known, phrase in _KNOWN.items():
        if known in message:
            return phrase
    own = shortened(_STATE.sub("", message).strip(), MAX_CHARACTERS).rstrip(".")
    return f"cannot be enforced: {own}"
