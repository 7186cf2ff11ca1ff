"""What schemathesis has to know beyond OpenAPI: how grammars are written, and what can be continued."""

from typing import Any

import schemathesis
from hypothesis import strategies

# No generator of JSON knows these formats, and text at random is in neither.
schemathesis.openapi.format(
    "lark", strategies.sampled_from(['start: "a"', "start: /[a-z]+/", "start: A\nA: /b/"])
)
schemathesis.openapi.format("rust-regex", strategies.sampled_from(["a", "[a-z]{2,9}", "(yes|no)", r"\d+"]))


@schemathesis.hook
def filter_body(_: Any, body: Any) -> bool:
    """Drop requests to continue the last message: no schema can say that it must be the assistant's."""
    return not (isinstance(body, dict) and body.get("continue_final_message") is True)
