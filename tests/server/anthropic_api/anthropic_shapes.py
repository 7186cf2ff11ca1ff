"""Validate responses against the anthropic package's models, with unknown fields forbidden."""

import json
from typing import Any

from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)
from anthropic.types.shared import ErrorResponse

from tests.server.openai_shapes import valid

_EVENTS = {
    "message_start": RawMessageStartEvent,
    "content_block_start": RawContentBlockStartEvent,
    "content_block_delta": RawContentBlockDeltaEvent,
    "content_block_stop": RawContentBlockStopEvent,
    "message_delta": RawMessageDeltaEvent,
    "message_stop": RawMessageStopEvent,
}


def valid_message(given: dict[str, Any]) -> Message:
    assert given["id"].startswith("msg_")
    assert given["stop_reason"] is not None
    assert "stop_sequence" in given
    return valid(Message, given)


def valid_events(body: str) -> list[Any]:
    """Return the events of a whole stream, without pings and comments; check that blocks do not overlap."""
    events = []
    for frame in body.strip().split("\n\n"):
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        given = json.loads(data.removeprefix("data: "))
        assert name == f"event: {given['type']}"
        if given["type"] == "ping":
            assert given == {"type": "ping"}
        else:
            events.append(valid(_EVENTS[given["type"]], given))
    assert [event.type for event in events[:1] + events[-2:]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    index, is_open = -1, False
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert not is_open
            index, is_open = index + 1, True
        assert is_open
        assert event.index == index
        is_open = event.type != "content_block_stop"
    assert not is_open
    return events


def assert_anthropic_error(body: dict[str, Any], kind: str = "invalid_request_error") -> str:
    """Check Anthropic's error object and return its message."""
    error = valid(ErrorResponse, body)
    assert error.request_id.startswith("req-")
    assert error.error.type == kind
    assert error.error.message
    return error.error.message
