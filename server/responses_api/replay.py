"""Stream a stored response again, with the events of a first stream."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json, to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.conversation.model import Tool
from reprise.server.output.openai_format import ResponseHead
from reprise.server.output.parsing.parts import EndPart, Part, ReasoningPart, TextPart, ToolCallPart
from reprise.server.responses_api.ids import head_id
from reprise.server.responses_api.output_items import Json, OutputItems
from reprise.server.responses_api.presenter import frame
from reprise.server.responses_api.store import StoredResponse

_NOT_BEFORE_THE_END = ("timings", "schema_valid")


def replay(stored: StoredResponse, after: int | None) -> bytes:
    """Return the events of a stored response whose sequence numbers are higher than after; None for all.

    Texts come whole, so there are fewer events than in the first stream. If after is beyond all of them,
    the last event still comes: a client that lost the end of the first stream must see it.
    """
    response = from_json(stored.body)
    events = list(enumerate(_events(response, stored.turn.num_input)))
    kept = events if after is None else [(number, event) for number, event in events if number > after]
    if not kept and after is not None:
        kept = [(after + 1, events[-1][1])]
    return b"".join(frame(event, number) for number, event in kept)


def _events(response: Json, num_input: int) -> Iterator[Json]:
    started = {key: value for key, value in response.items() if key not in _NOT_BEFORE_THE_END}
    started |= dict.fromkeys(("completed_at", "incomplete_details", "usage"))
    started |= {"status": "in_progress", "output": []}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": started}
    head = ResponseHead(head_id(response["id"]), response["created_at"], response["model"], "")
    given: list[Json] = response["output"]
    output = OutputItems(head, num_input, any("encrypted_content" in item for item in given), _tools(given))
    for part in _parts(given):
        yield from output.add(part)
    yield from output.add(EndPart("length" if response["status"] == "incomplete" else "stop"))
    yield {"type": f"response.{response['status']}", "response": response}


def _parts(items: list[Json]) -> Iterator[Part]:
    """Yield the parts that the items were built from. The tool of a call is named by the item's position."""
    for index, item in enumerate(items):
        match item["type"]:
            case "message":
                (content,) = item["content"]
                yield TextPart(content["text"], tuple(map(_logprob, content["logprobs"])))
            case "reasoning":
                yield ReasoningPart(item["content"][0]["text"])
            case "custom_tool_call":
                yield ToolCallPart(item["call_id"], str(index), to_json({"input": item["input"]}).decode())
            case _:
                yield ToolCallPart(item["call_id"], str(index), item["arguments"])


def _tools(items: list[Json]) -> list[Tool]:
    return [
        Tool(
            str(index),
            None,
            {},
            is_custom=item["type"] == "custom_tool_call",
            own_name=item["name"],
            namespace=item.get("namespace"),
        )
        for index, item in enumerate(items)
        if "call_id" in item
    ]


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    """Return an entry as it came from the engine. The id, which nothing shows, is not stored."""
    top = tuple((0, bytes(one["bytes"]), one["logprob"]) for one in entry["top_logprobs"])
    return TokenLogprob(0, bytes(entry["bytes"]), entry["logprob"], top)
