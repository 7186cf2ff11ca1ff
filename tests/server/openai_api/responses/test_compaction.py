"""A conversation is summarised, and what is returned can be sent in its place."""

from dataclasses import replace

import pytest
from openai.types.responses import CompactedResponse

from reprise.engine.interface.models import AnswerLimits
from reprise.server.openai_api.responses.items import SUMMARY_HEAD
from reprise.server.openai_api.responses.schemas import ASKED
from tests.server.fake_engine import CONTEXT_TOKENS, THINKING, fail_midway, says
from tests.server.openai_api.responses.test_responses import PATH, ask, seen
from tests.server.openai_shapes import assert_error, valid_timings

COMPACT = f"{PATH}/compact"
SUMMARY = "Ada asked for the weather.\nżółw"
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
SAID = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "I am Ada."},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "sun"},
]


async def compact(client, **fields):
    """Return the output items of a compaction; check its other fields."""
    told = await client.post(COMPACT, json={"model": "alias", **fields})
    assert told.status_code == 200, told.text
    given = told.json()
    valid_timings(given.pop("timings"))
    assert given.keys() == CompactedResponse.model_fields.keys() - {"image"}
    assert (given["object"], type(given["created_at"])) == ("response.compaction", int)
    assert given["id"].startswith("resp_")
    assert given["usage"]["total_tokens"] > given["usage"]["input_tokens"] > 0
    CompactedResponse.model_validate(given | {"output": given["output"][-1:]}, strict=True)
    return given["output"]


async def test_users_messages_are_kept_and_the_rest_is_a_summary(client, engine):
    engine.script = says(SUMMARY)
    *kept, compaction = await compact(client, input=SAID)
    assert [item["content"][0]["text"] for item in kept] == ["I am Ada.", "Weather?"]
    assert {(item["type"], item["role"], item["status"]) for item in kept} == {
        ("message", "user", "completed")
    }
    assert compaction["type"] == "compaction"
    assert len({item["id"] for item in [*kept, compaction]}) == 3


async def test_the_model_is_shown_the_conversation_and_asked_for_a_summary(client, engine):
    engine.script = says(SUMMARY)
    await compact(client, input=SAID, instructions="You code.")
    system, *said = seen(engine)
    assert system == {"role": "system", "content": "You code.\n\nBe brief."}
    assert [message["role"] for message in said] == ["user", "assistant", "user", "assistant", "tool", "user"]
    assert said[-1]["content"] == ASKED
    (request,) = engine.requests
    assert request.max_tokens == CONTEXT_TOKENS // 8
    assert engine.tokenizer.rendered[-1][1]["enable_thinking"] is False


@pytest.mark.parametrize(("of_model", "wanted"), [(None, 2048), (128, 128), (0, 0)])
async def test_a_summary_has_the_loop_guard_of_answers_without_a_limit(client, engine, of_model, wanted):
    engine.info = replace(engine.info, answer_limits=AnswerLimits(None, of_model))
    await compact(client, input="x")
    assert engine.requests[-1].loop_guard_tokens == wanted


async def test_the_next_request_reads_the_summary(client, engine):
    engine.script = says(SUMMARY)
    compacted = await compact(client, input=SAID)
    await ask(client, input=[*compacted, {"role": "user", "content": "And now?"}])
    assert [message["content"] for message in seen(engine)] == [
        "I am Ada.",
        "Weather?",
        f"{SUMMARY_HEAD}\n{SUMMARY}",
        "And now?",
    ]


async def test_a_compacted_conversation_is_compacted_and_continued_again(client, engine):
    engine.script = says(SUMMARY)
    first = await compact(client, input="I am Ada.")
    one = await ask(client, input=first)
    engine.script = says("Shorter.")
    kept, compaction = await compact(client, input=[], previous_response_id=one.id)
    assert f"{SUMMARY_HEAD}\n{SUMMARY}" in [message["content"] for message in seen(engine)]
    assert kept["content"][0]["text"] == "I am Ada."
    await ask(client, input=[compaction])
    assert seen(engine) == [{"role": "user", "content": f"{SUMMARY_HEAD}\nShorter."}]


async def test_a_compaction_of_another_server_is_left_out(client, engine):
    for content in ("gAAAAB", "reprise:?", None):
        foreign = {"type": "compaction", "encrypted_content": content}
        told = await client.post(PATH, json={"input": [foreign, {"role": "user", "content": "x"}]})
        assert told.status_code == 200
        assert told.headers["x-reprise-ignored"] == "input[0]"
        assert seen(engine) == [{"role": "user", "content": "x"}]


async def test_reasoning_is_no_part_of_the_summary(client, engine):
    engine.tokenizer.markers = THINKING
    engine.script = says("<think>hm</think>", SUMMARY)
    compaction = (await compact(client, input="x"))[-1]
    await ask(client, input=[compaction])
    assert seen(engine)[0]["content"] == f"{SUMMARY_HEAD}\n{SUMMARY}"


async def test_a_summary_as_long_as_allowed_is_returned(client, engine):
    engine.script = says("x" * (CONTEXT_TOKENS // 8), reason="length")
    assert await compact(client, input="x")


@pytest.mark.parametrize("input_length", [500, 1200])
async def test_no_room_for_a_summary_is_told_as_agents_know_it(client, engine, input_length):
    engine.script = says("cut", reason="length")
    told = await client.post(COMPACT, json={"input": "x" * input_length})
    assert told.status_code == 400
    assert "exceeds the context window" in assert_error(told.json(), "input", "context_length_exceeded")


def loops(reason):
    """Return a script that writes one text until the loop guard ends the answer."""

    def loop(engine, job):
        end = says("so " * 20, reason=reason)(engine, job)
        return replace(end, usage=replace(end.usage, is_loop=True))

    return loop


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (says(" "), "no_summary"),
        (loops("stop"), "no_summary"),
        (loops("length"), "no_summary"),
        (fail_midway, "request_failed"),
    ],
    ids=["nothing", "a loop", "a loop that is cut", "failed"],
)
async def test_without_a_summary_the_request_fails(client, engine, script, code):
    engine.script = script
    told = await client.post(COMPACT, json={"input": "x"})
    assert told.status_code == 500
    assert_error(told.json(), None, code)


async def test_the_summary_is_not_stored(client, app):
    await compact(client, input="x")
    assert len(app.state.responses) == 0


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": 5}, 400, "input"),
        ({"input": "x", "previous_response_id": "resp_0"}, 404, "previous_response_id"),
        ({"input": "x", "model": "gpt"}, 404, "model"),
    ],
)
async def test_a_request_that_cannot_be_answered_is_named(client, engine, fields, status, param):
    told = await client.post(COMPACT, json=fields)
    assert told.status_code == status
    assert told.json()["error"]["param"] == param
    assert engine.requests == []


async def test_what_has_no_effect_is_left_out(client):
    told = await client.post(
        COMPACT, json={"input": "x", "tools": [], "image": {"a": 1}, "service_tier": "flex"}
    )
    assert told.status_code == 200
    assert set(told.headers["x-reprise-ignored"].split(", ")) == {"tools", "image"}
