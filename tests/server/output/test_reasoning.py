"""Reasoning is separated from the content, counted, and controlled by the request."""

import pytest

from tests.server.fake_engine import THINKING, says
from tests.server.openai_shapes import assert_error, valid_chat, valid_chat_chunks

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
THOUGHT = "<think>\nhm, so\n</think>\n\nHi!"


@pytest.fixture
def thinker(engine):
    engine.tokenizer.markers = THINKING
    return engine


async def test_reasoning_is_not_content(client, thinker):
    thinker.script = says(*THOUGHT)
    response = await client.post(PATH, json={"messages": HELLO})
    answer = valid_chat(response.json())
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("Hi!", "hm, so")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<think>\nhm, so\n</think>")
    assert answer.usage.completion_tokens == len(THOUGHT)


async def test_reasoning_is_streamed(client, thinker):
    thinker.script = says(*THOUGHT)
    asked = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, closing = valid_chat_chunks((await client.post(PATH, json=asked)).text)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thought = [delta.reasoning_content for delta in deltas if hasattr(delta, "reasoning_content")]
    assert "".join(thought) == "hm, so"
    assert "".join(delta.content or "" for delta in deltas) == "Hi!"
    assert closing.usage.completion_tokens_details.reasoning_tokens == len("<think>\nhm, so\n</think>")


async def test_the_prompt_may_have_opened_the_reasoning(client, thinker):
    thinker.tokenizer.opening = "assistant: <think>"
    thinker.script = says("hm</think>Hi!")
    answer = valid_chat((await client.post(PATH, json={"messages": HELLO})).json())
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("Hi!", "hm")
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("hm</think>")


async def test_a_response_cut_off_in_the_reasoning_has_no_content(client, thinker):
    thinker.script = says("<think>hm", reason="length")
    response = await client.post(PATH, json={"messages": HELLO, "n": 2})
    for choice in valid_chat(response.json()).choices:
        assert (choice.message.content, choice.message.reasoning_content) == ("", "hm")
        assert choice.finish_reason == "length"
    assert response.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * len("<think>hm")


async def test_without_reasoning_there_is_no_reasoning_field(client, thinker):
    thinker.script = says("Hi!")
    response = await client.post(PATH, json={"messages": HELLO})
    assert "reasoning_content" not in response.json()["choices"][0]["message"]
    assert response.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


async def test_completions_return_the_text_unparsed(client, thinker):
    thinker.script = says(THOUGHT)
    response = await client.post("/v1/completions", json={"prompt": "hello"})
    assert response.json()["choices"][0]["text"] == THOUGHT


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_earlier_reasoning_reaches_the_template(client, thinker, name):
    answer = {"role": "assistant", "content": "Hi!", name: "hm"}
    response = await client.post(PATH, json={"messages": [*HELLO, answer, *HELLO]})
    assert response.status_code == 200, response.text
    assert thinker.tokenizer.rendered[0][0][1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": None}, None),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "a": 1}},
            {"reasoning_effort": "none", "enable_thinking": True, "a": 1},
        ),
    ],
)
async def test_the_effort_reaches_the_template(client, thinker, fields, arguments):
    assert (await client.post(PATH, json={"messages": HELLO, **fields})).status_code == 200
    assert thinker.tokenizer.rendered[0][1] == arguments


@pytest.mark.parametrize("effort", ["huge", 5, ["low"]])
async def test_an_unknown_effort_is_refused(strict_client, effort):
    response = await strict_client.post(PATH, json={"messages": HELLO, "reasoning_effort": effort})
    assert "'minimal'" in assert_error(response.json(), "reasoning_effort", "invalid_value")


async def test_a_required_tool_call_comes_after_the_reasoning(client, thinker):
    tool = {"type": "function", "function": {"name": "f"}}
    asked = {"messages": HELLO, "tools": [tool], "tool_choice": "required"}
    await client.post(PATH, json=asked)
    thinker.tokenizer.opening = "assistant: <think>"
    await client.post(PATH, json=asked)
    begins, goes_on = (request.grammar.text.splitlines()[1] for request in thinker.requests)
    end = " ".join(f"<[{byte}]>" for byte in b"</think>")
    assert goes_on == f"thinking: TEXT {end} SPACE"
    assert begins.endswith(f"TEXT {end} SPACE)?")
