"""Bring a conversation into the form that gpt-oss's chat template wants.

The template names reasoning `thinking`, takes one tool call a message and shows it with the result that
follows, and drops system messages after the first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""The efforts that the model does not know, and what comes closest."""


def to_harmony_messages(messages: Sequence[Json]) -> list[Json]:
    """Convert messages from OpenAI's form to the form that gpt-oss's chat template takes."""
    num_first = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    instructions = "\n\n".join(message["content"] for message in messages[:num_first])
    converted: list[Json] = [{"role": "system", "content": instructions}] if num_first else []
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    placed: set[str] = set()
    for message in messages[num_first:]:
        match message["role"]:
            case "assistant" if message.get("tool_calls"):
                calls = message["tool_calls"]
                converted += _calls(message, results, placed, is_only=len(calls) == 1)
            case "assistant":
                converted.append({"role": "assistant", "content": message["content"] or ""})
            case "tool":
                if message["tool_call_id"] not in placed:
                    converted.append({"role": "tool", "content": message["content"]})
            case "system":
                converted.append({"role": "user", "content": message["content"]})
            case _:
                converted.append(message)
    return converted


def to_harmony_tools(tools: Sequence[Json]) -> list[Json]:
    """Give a description to each tool that has none, as the template fails without it."""
    return [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools]


def to_harmony_arguments(arguments: Json) -> Json:
    """Replace a reasoning_effort that gpt-oss does not know by one that it knows."""
    effort = arguments.get("reasoning_effort")
    return arguments if effort not in _EFFORTS else {**arguments, "reasoning_effort": _EFFORTS[effort]}


def _calls(message: Json, results: dict[str, Json], placed: set[str], *, is_only: bool) -> Iterator[Json]:
    """Yield a message for each call, and after all but the last one its result."""
    # A preamble is rendered in the channel of the reasoning: the template has no other place for it.
    texts = (message.get("reasoning_content"), message["content"])
    thinking = "\n\n".join(text for text in texts if text)
    for index, call in enumerate(message["tool_calls"]):
        shown: Json = {"role": "assistant", "tool_calls": [call]}
        yield shown | ({"thinking": thinking} if thinking and not index else {})
        if not is_only and (result := results.get(call["id"])) is not None:
            placed.add(call["id"])
            yield {"role": "tool", "content": result["content"]}
