"""As many tools as may be sent, with the longest names, 64 stop strings, and schemas that must be relaxed."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from reprise.config.settings import Settings
from tests.end_to_end.clients.scripted import serving_script

NUM_TOOLS = 1024
LAST = "n" * 128
CALL = f'<tool_call>\n{{"name": "{LAST}", "arguments": {{"a": "b"}}}}\n</tool_call>'
PLAIN = {"type": "object", "properties": {"a": {"type": "string"}}}
RELAXED = {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 9}]}}}
"""No grammar can count how many alternatives fit, so oneOf is left out."""
NUM_RELAXED = 150


def tools(num: int, schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return tools, the last of them LAST. schema: of the last 150."""
    functions: list[dict[str, Any]] = [{"name": f"t{number}"} for number in range(num - 1)] + [{"name": LAST}]
    for function in functions[-NUM_RELAXED:]:
        function["parameters"] = schema
    return [{"type": "function", "function": function} for function in functions]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = Settings(keeps_costs=False, ngram_table_file=None, max_context_tokens=2**16)
    with serving_script(lambda prompt: CALL if "call" in prompt[-200:] else "Done.", settings) as address:
        yield address


@pytest.mark.parametrize(
    ("num", "choice", "schema"),
    [
        (129, "required", PLAIN),
        (NUM_TOOLS, "auto", RELAXED),
        (NUM_TOOLS, "required", PLAIN),
        (NUM_TOOLS, "required", RELAXED),
        (NUM_TOOLS, LAST, RELAXED),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_many_tools_are_shown_and_called(url: str, num: int, choice: str, schema: dict[str, Any]):
    named = {"type": "function", "function": {"name": choice}}
    body = {
        "messages": [{"role": "user", "content": "Please call."}],
        "tools": tools(num, schema),
        "tool_choice": named if choice == LAST else choice,
        "stop": [f"stop {number}" for number in range(64)],
        "max_tokens": 200,
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=100)
    assert response.status_code == 200, response.text[-500:]
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (LAST, {"a": "b"})
    is_relaxed = "x-reprise-relaxed" in response.headers
    assert is_relaxed == (choice != "auto" and schema is RELAXED)
