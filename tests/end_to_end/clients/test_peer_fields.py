"""Fields of other servers, free-form tools and relaxed schemas, with the official SDK and the real server."""

import json
import re

import httpx
import openai
import pytest

from tests.server.openai_shapes import valid_chat

HELLO = [{"role": "user", "content": "Hello!"}]
LONG = [{"role": "user", "content": "Find the lantern with color red and size 12. " * 40}]
OWN = ("tools", "tool_choice", "n", "stop", "logprobs", "parallel_tool_calls")
PLAIN, DRAFTED = {"draft": {"type": "none"}}, {"draft": {"type": "suffix"}}


@pytest.fixture
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client, messages=HELLO, *, drafts=PLAIN, max_tokens=60, **fields):
    given = {"model": "demo", "messages": messages, "max_tokens": max_tokens, "temperature": 0.8, "seed": 5}
    own = {name: fields.pop(name) for name in OWN if name in fields}
    return client.chat.completions.create(**given, **own, extra_body={**drafts, **fields})


@pytest.mark.parametrize(
    ("fields", "num_tokens"), [({"min_tokens": 40}, range(40, 61)), ({"ignore_eos": True}, range(60, 61))]
)
def test_an_answer_is_as_long_as_asked_and_the_same_with_drafts(client, fields, num_tokens):
    free = ask(client)
    assert free.usage.completion_tokens not in num_tokens
    plain, drafted = (ask(client, drafts=drafts, n=2, **fields) for drafts in (PLAIN, DRAFTED))
    assert [one.message.content for one in plain.choices] == [one.message.content for one in drafted.choices]
    assert plain.choices[0].message.content.startswith(free.choices[0].message.content)
    assert plain.usage.completion_tokens >= 2 * num_tokens[0]


def test_a_stop_token_ends_the_answer_and_has_no_text(client, server_url):
    free = ask(client).choices[0].message.content
    pieces = httpx.post(f"{server_url}/tokenize", json={"content": free}).json()["tokens"]
    stopped = ask(client, stop_token_ids=[pieces[4]])
    text = stopped.choices[0].message.content
    assert free.startswith(text)
    assert len(text) < len(free)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens <= 5
    allowed = ask(client, allowed_token_ids=pieces[:2], max_tokens=9, drafts=DRAFTED, logprobs=True)
    texts = [
        httpx.post(f"{server_url}/detokenize", json={"tokens": [one]}).json()["content"] for one in pieces
    ]
    assert {entry.token for entry in allowed.choices[0].logprobs.content} <= set(texts[:2])
    assert allowed.usage.completion_tokens == 9


def test_bad_words_are_not_said_however_they_are_split_into_tokens(client):
    free = ask(client).choices[0].message.content
    words = [free[2:5], free.split()[0], free[-4:-1], "\n\n", "a.b*[c]"]
    plain, drafted = (ask(client, drafts=drafts, bad_words=words, n=2) for drafts in (PLAIN, DRAFTED))
    texts = [choice.message.content for choice in plain.choices]
    assert texts == [choice.message.content for choice in drafted.choices]
    assert not any(word in text for word in words for text in texts)
    assert all(texts)
    unheard = ask(client, bad_words=["\u2603 nobody says this"]).choices[0].message.content
    assert unheard == free


def test_an_answer_continues_the_message_that_it_began(client):
    free = ask(client).choices[0].message.content
    begun = [*HELLO, {"role": "assistant", "content": free[:12].rstrip()}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    plain, drafted = (ask(client, begun, drafts=drafts, **fields) for drafts in (PLAIN, DRAFTED))
    text = plain.choices[0].message.content
    assert text == drafted.choices[0].message.content
    again = ask(client, begun)
    assert plain.usage.prompt_tokens < again.usage.prompt_tokens
    cut = ask(client, begun, truncate_prompt_tokens=9, **fields)
    assert cut.usage.prompt_tokens == 9


def test_a_stop_string_can_be_shown(client):
    free = ask(client).choices[0].message.content
    word = free.split()[1]
    hidden, shown = (ask(client, stop=word, include_stop_str_in_output=shows) for shows in (False, True))
    assert shown.choices[0].message.content == hidden.choices[0].message.content + word


def test_a_stream_tells_how_far_it_is(client):
    stream = client.chat.completions.create(
        model="demo",
        messages=LONG,
        max_tokens=12,
        stream=True,
        extra_body={"return_progress": True, "timings_per_token": True, "ignore_eos": True},
    )
    chunks = [chunk.model_dump() for chunk in stream]
    progress = [chunk["prompt_progress"] for chunk in chunks if chunk.get("prompt_progress")]
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert [one["processed"] for one in progress] == sorted({one["processed"] for one in progress})
    texts = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    timed = [chunk["timings"]["predicted_n"] for chunk in texts if chunk.get("timings")]
    assert timed == sorted(timed)
    assert len(timed) >= len(texts) - 1


def grammar(syntax, definition):
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


SHAPES = [
    (grammar("regex", "(red|blue) lantern [0-9]{2}"), "(red|blue) lantern [0-9]{2}"),
    (grammar("lark", 'start: "find" LF /[a-z]{2,9}/\nLF: "\\n"'), "find\n[a-z]{2,9}"),
]
NO_IDS = {"message": {"tool_calls": {"__all__": {"id"}}}}


@pytest.mark.parametrize("stop", [None, ["lan"], ["}"], ["input"]])
@pytest.mark.parametrize(("shape", "wanted"), SHAPES, ids=["regex", "lark"])
def test_a_free_form_tool_is_called_as_its_grammar_says(client, shape, wanted, stop):
    tool = {"type": "custom", "custom": {"name": "edit", "description": "Find it.", "format": shape}}
    fields = {
        "tools": [tool],
        "tool_choice": {"type": "custom", "custom": {"name": "edit"}},
        "stop": stop,
        "max_tokens": 120,
        "parallel_tool_calls": False,
    }
    plain, drafted = (ask(client, LONG[:1], drafts=drafts, **fields) for drafts in (PLAIN, DRAFTED))
    whole, same = (one.choices[0].model_dump(exclude=NO_IDS) for one in (plain, drafted))
    assert whole == same
    streamed = client.chat.completions.create(
        model="demo",
        messages=LONG[:1],
        temperature=0.8,
        seed=5,
        stream=True,
        extra_body=PLAIN,
        **fields,
    )
    deltas = [chunk.choices[0].delta for chunk in streamed if chunk.choices]
    calls = [call.model_dump(exclude_unset=True) for delta in deltas for call in delta.tool_calls or ()]
    text = "".join(call["custom"]["input"] for call in calls if "custom" in call)
    if stop is None:
        valid_chat(plain.model_dump(exclude_unset=True))
        (call,) = plain.choices[0].message.tool_calls
        assert (call.type, call.custom.name) == ("custom", "edit")
        assert re.fullmatch(wanted, call.custom.input)
        assert text == call.custom.input
        assert plain.choices[0].finish_reason == "tool_calls"
    else:
        assert not text or text[0] in "rbf"


WHOLE = {"type": "integer", "minimum": 0, "maximum": 9}
OVERLAPPING = {
    "type": "object",
    "properties": {"size": {"oneOf": [WHOLE, {**WHOLE, "minimum": 3}]}},
    "required": ["size"],
    "additionalProperties": False,
}


def test_a_schema_is_relaxed_and_the_call_checked(client, server_url):
    tools = [{"type": "function", "function": {"name": "find", "parameters": OVERLAPPING}}]
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=HELLO, tools=tools, tool_choice="required", max_tokens=400, temperature=0
    )
    assert raw.headers["x-reprise-relaxed"] == "tools[0].function.parameters.properties.size.oneOf"
    (choice,) = raw.parse().model_dump()["choices"]
    size = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["size"]
    assert choice["schema_valid"] == (size < 3)
    message = httpx.post(
        f"{server_url}/v1/messages",
        json={
            "model": "demo",
            "max_tokens": 400,
            "temperature": 0,
            "messages": HELLO,
            "tools": [{"name": "find", "input_schema": OVERLAPPING}],
            "tool_choice": {"type": "any"},
        },
        timeout=60,
    )
    assert isinstance(message.json()["schema_valid"], bool)
