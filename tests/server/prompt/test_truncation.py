"""With truncation: auto the oldest turns go, whole, and the prompts of a session share their beginning."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reprise.server.prompt.length import cuts, fit
from tests.server.openai_shapes import assert_error

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}


def turn(number, length=60):
    return [
        {"role": "user", "content": f"q{number} {'x' * length}"},
        {"role": "assistant", "content": f"a{number}"},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]


def session(num_turns, length=60):
    newest = {"role": "user", "content": "newest"}
    return [SYSTEM, *(message for number in range(num_turns) for message in turn(number, length)), newest]


def encode(messages):
    return tuple("".join(f"{one['role']}: {one['content']}\n" for one in messages).encode())


@settings(deadline=None)
@example(lengths=[0, 0, 34], context=200)
@given(lengths=st.lists(st.integers(0, 400), max_size=12), context=st.integers(200, 1500))
def test_whole_turns_go_oldest_first_and_never_the_newest_or_the_head(lengths, context):
    messages = [SYSTEM, *(m for at, length in enumerate(lengths) for m in turn(at, length)), *turn(99, 1)]
    tokens, num_dropped = fit(messages, context, context // 4, encode)
    kept = [SYSTEM, *messages[1 + num_dropped :]]
    assert tokens == encode(kept)
    assert kept[1]["role"] == "user"
    assert kept[-3:] == messages[-3:]
    assert len(tokens) < context or kept[1:] == messages[-3:]
    assert num_dropped == 0 or len(encode(messages)) >= context


def test_a_conversation_that_fits_is_rendered_once_and_stays_whole():
    asked = []
    messages = session(5)
    tokens, num_dropped = fit(messages, 1000, 250, lambda given: asked.append(given) or encode(given))
    assert (tokens, num_dropped) == (encode(messages), 0)


def test_a_session_s_prompts_mostly_begin_with_the_one_before():
    prompts = [fit(session(num), 4000, 1000, encode)[0] for num in range(200)]
    assert all(len(prompt) < 4000 for prompt in prompts)
    ends = [len(prompt) - len("user: newest\n") for prompt in prompts]
    changed = [at for at in range(199) if prompts[at][: ends[at]] != prompts[at + 1][: ends[at]]]
    assert 10 < len(changed) < 20


def test_far_more_than_could_fit_is_never_encoded():
    asked = []
    fit(session(3000), 1000, 250, lambda given: asked.append(len(encode(given))) or encode(given))
    assert max(asked) <= 6000
    assert len(asked) <= 6


def test_cuts_do_not_depend_on_what_follows():
    before, after = cuts(session(20), 300), cuts(session(21), 300)
    assert [cut.num_dropped for cut in before[:-1]] == [cut.num_dropped for cut in after[: len(before) - 1]]


def conversation(num_turns):
    return [
        {"role": one["role"], "content": one["content"]}
        for one in session(num_turns)
        if one["role"] != "tool"
    ]


async def test_a_response_leaves_out_the_oldest_turns_and_says_so(client, engine):
    response = await client.post(PATH, json={"input": conversation(30), "truncation": "auto"})
    assert response.status_code == 200, response.text
    said = re.fullmatch(r"truncation: the (\d+) oldest messages", response.headers["x-reprise-ignored"])
    head, *others = conversation(30)
    kept = [head, *others[int(said[1]) :]]
    assert (kept[1]["role"], kept[-1]["content"]) == ("user", "newest")
    assert engine.requests[-1].prompt == encode(kept)
    assert len(encode(kept)) <= 750
    assert response.json()["truncation"] == "auto"


async def test_what_fits_stays_as_it_is(client, engine):
    response = await client.post(PATH, json={"input": "hello", "truncation": "auto"})
    assert "x-reprise-ignored" not in response.headers
    assert response.json()["truncation"] == "auto"
    assert [one["content"] for one in engine.tokenizer.rendered[-1][0]] == ["hello"]


@pytest.mark.parametrize(
    "fields",
    [{"truncation": "disabled", "input": conversation(30)}, {"truncation": "auto", "input": "x" * 3000}],
)
async def test_without_it_and_where_the_newest_turn_is_too_long_the_request_fails(client, fields):
    response = await client.post(PATH, json=fields)
    assert response.status_code == 400
    assert_error(response.json(), "input", "context_length_exceeded")


async def test_chats_can_ask_for_it_too(client):
    response = await client.post(CHAT, json={"messages": conversation(30), "truncation": "auto"})
    assert response.status_code == 200, response.text
    assert "oldest messages" in response.headers["x-reprise-ignored"]
