"""What schemathesis has to know beyond OpenAPI: how grammars are written, and what no schema can say."""

from typing import Any

import schemathesis
from hypothesis import strategies

FORMATS = ("output_config", "output_format", "response_format", "text", "guided_json")

# No generator of JSON knows these formats, and text at random is in neither.
schemathesis.openapi.format(
    "lark", strategies.sampled_from(['start: "a"', "start: /[a-z]+/", "start: A\nA: /b/"])
)
schemathesis.openapi.format("rust-regex", strategies.sampled_from(["a", "[a-z]{2,9}", "(yes|no)", r"\d+"]))


@schemathesis.hook
def filter_body(_: Any, body: Any) -> bool:
    """Drop bodies of which no schema can say whether they are valid.

    A message that is continued must be the last one and the assistant's. A schema of the answer must have
    only keywords that can be enforced, at any depth.
    """
    if not isinstance(body, dict):
        return True
    has_schema = any(_holds_schema(name, body.get(name)) for name in FORMATS)
    # Ollama's is the schema itself.
    has_schema |= isinstance(body.get("format"), dict)
    return body.get("continue_final_message") is not True and not has_schema


def _holds_schema(name: str, given: Any) -> bool:
    if not isinstance(given, dict):
        return False
    if name in ("schema", "guided_json"):
        return bool(given)
    return any(_holds_schema(inner, value) for inner, value in given.items())
