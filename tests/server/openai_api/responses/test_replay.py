"""A stored response is streamed again with the events of a first stream."""

import pytest

from reprise.engine.interface.events import Delta, Finished, TokenLogprob, Usage
from tests.server.fake_engine import THINKING, says
from tests.server.openai_api.responses.responses_shapes import raw_events, valid_events
from tests.server.openai_api.responses.test_responses import PATH, ask
from tests.server.openai_api.responses.test_tools import TEXT, TOOLS, call
from tests.server.openai_shapes import assert_error

CALLS = call("collaboration__spawn_agent", {"a": 1}) + call("apply_patch", {"input": TEXT})


def one_token(_, job):
    entry = TokenLogprob(104, b"h", -0.5, ((104, b"h", -0.5), (105, b"\xff", float("-inf"))))
    job.sink(Delta("h", (entry,)))
    return Finished("stop", Usage(num_prompt_tokens=1, num_completion_tokens=1, total_s=0.1), (104,))


CASES = {
    "text": (says(*"Hi there"), {}),
    "nothing": (says(""), {}),
    "cut off": (says("Hi", reason="length"), {}),
    "cut off in a thought": (says("<think>hm", reason="length"), {}),
    "ends of lines": (says("one\u2028two"), {}),
    "calls": (says(*("<think>so</think>Let me see." + CALLS)), {"tools": TOOLS}),
    "cut in a call": (says(*CALLS[:-25]), {"tools": TOOLS}),
    "encrypted": (says("<think>so</think>Hi"), {"include": ["reasoning.encrypted_content"]}),
    "log probabilities": (one_token, {"top_logprobs": 2}),
    "several items": (says("Hi"), {"input": [{"role": "user", "content": text} for text in "abc"]}),
}


def merged(events):
    """Return a stream's events with those of one text made into one, and without numbers and silences."""
    kept = []
    for event in events:
        del event["sequence_number"]
        is_more = event["type"].endswith(".delta") and kept[-1]["type"] == event["type"]
        if is_more:
            kept[-1]["delta"] += event["delta"]
        elif event["type"] != "response.in_progress":
            kept.append(event)
    return kept


async def events_of(client, response_id, **query):
    told = await client.get(f"{PATH}/{response_id}", params={"stream": "true", **query})
    assert told.status_code == 200, told.text
    assert told.headers["content-type"].startswith("text/event-stream")
    return told.text


@pytest.mark.parametrize(("script", "fields"), CASES.values(), ids=CASES)
async def test_a_replay_has_the_events_of_the_first_stream(client, engine, script, fields):
    engine.tokenizer.markers = THINKING
    engine.script = script
    first = await client.post(PATH, json={"input": "hello", "stream": True, **fields})
    made = raw_events(first.text)
    again = await events_of(client, made[-1]["response"]["id"])
    valid_events(again)
    assert len(again.splitlines()) == again.count("\n")
    assert merged(raw_events(again)) == merged(made)


@pytest.mark.parametrize("after", [0, 1, 4, 7])
async def test_a_replay_begins_after_the_event_that_is_named(client, after):
    response = await ask(client)
    whole = raw_events(await events_of(client, response.id))
    assert len(whole) == 9
    assert raw_events(await events_of(client, response.id, starting_after=after)) == whole[after + 1 :]


@pytest.mark.parametrize("after", [8, 500])
async def test_the_last_event_comes_after_more_events_than_a_replay_has(client, after):
    response = await ask(client)
    last = raw_events(await events_of(client, response.id))[-1]
    told = raw_events(await events_of(client, response.id, starting_after=after))
    assert told == [last | {"sequence_number": after + 1}]


async def test_an_unknown_response_is_not_streamed(client):
    told = await client.get(f"{PATH}/resp_0", params={"stream": "true"})
    assert told.status_code == 404
    assert_error(told.json(), "response_id", None)
