"""Validate /v1/responses against the openai package's models; see openai_shapes.py."""

import json
from typing import Any, get_args

from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent

from tests.server.openai_shapes import valid, valid_timings

EVENTS = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in get_args(get_args(ResponseStreamEvent)[0])
}


def valid_response(given: dict[str, Any]) -> Response:
    assert given["status"] in ("completed", "incomplete", "in_progress", "failed")
    assert (
        ("timings" in given)
        == (given["usage"] is not None)
        == (given["status"] in ("completed", "incomplete"))
    )
    return valid(Response, given)


def valid_items(given: dict[str, Any]) -> ResponseItemList:
    return valid(ResponseItemList, given)


def raw_events(body: str) -> list[dict[str, Any]]:
    """Return the data of a stream's events; check that each event line has the same type."""
    events = []
    for frame in body.split("\n\n")[:-1]:
        name, data = (line for line in frame.split("\n") if not line.startswith(":"))
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def valid_events(body: str) -> list[Any]:
    """Return the typed events of a whole stream; check that they are consistent."""
    raw = raw_events(body)
    assert [event["sequence_number"] for event in raw] == list(range(len(raw)))
    assert [event["type"] for event in raw[:2]] == ["response.created", "response.in_progress"]
    assert raw[-1]["type"].removeprefix("response.") in ("completed", "incomplete", "failed")
    assert raw[-1]["type"] == f"response.{raw[-1]['response']['status']}"
    typed = []
    for event in raw:
        if (timings := event.get("response", {}).pop("timings", None)) is not None:
            valid_timings(timings)
        typed.append(valid(EVENTS[event["type"]], event))
    _check_items(typed)
    return typed


def _check_items(events: list[Any]) -> None:
    """Check that each item is added once, has deltas that make up its text, and is in the response."""
    begun, done, texts = {}, {}, {}
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(begun)
            assert event.item.status == "in_progress"
            begun[event.output_index] = event.item.id
        elif event.type == "response.output_item.done":
            done[event.output_index] = event.item
        if (index := getattr(event, "output_index", None)) is not None:
            assert getattr(event, "item_id", begun[index]) == begun[index]
        if event.type.endswith(".delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
        elif event.type.endswith((".output_text.done", ".reasoning_text.done")):
            assert event.text == texts.get(event.output_index, "")
        elif event.type.endswith(".arguments.done"):
            assert event.arguments == texts[event.output_index]
    assert all(item.status in ("completed", "incomplete") for item in done.values())
    last = events[-1].response
    if last.status != "failed":
        assert done.keys() == begun.keys()
        assert [done[index] for index in sorted(done)] == last.output
    assert [item.id for item in last.output] == list(begun.values())
