"""Tools with the official SDK, the real server and the bundled model: choices, calls and results."""

import json

import openai
import pytest

from tests.server.openai_shapes import valid_chat, valid_chat_chunks

LANTERN = {
    "type": "object",
    "properties": {"color": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["color", "size"],
    "additionalProperties": False,
}
LAMP = {
    "type": "object",
    "properties": {"state": {"enum": ["on", "off"]}},
    "required": ["state"],
    "additionalProperties": False,
}


def _tool(name, description, parameters, is_strict):
    function = {"name": name, "description": description, "parameters": parameters, "strict": is_strict}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("find_lantern", "Find the lantern.", LANTERN, True),
    _tool("set_lamp", "Set a lamp.", LAMP, True),
]
FREE = [
    _tool("find_lantern", "Find the lantern.", LANTERN, False),
    _tool("set_lamp", "Set a lamp.", LAMP, False),
]
QUESTION = {"role": "user", "content": "Find the lantern with color red and size 12."}
HELLO = {"role": "user", "content": "Hello!"}


@pytest.fixture
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def _price(color, size):
    return {"price": {"red": 7}[color] * size}


def test_a_loop_of_tools_comes_to_its_answer(client):
    messages = [QUESTION]
    for _ in range(4):
        answer = client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, temperature=0)
        valid_chat(answer.model_dump(exclude_unset=True))
        (choice,) = answer.choices
        if choice.finish_reason != "tool_calls":
            break
        assert choice.message.content is None
        messages.append(choice.message.model_dump(exclude_unset=True))
        for call in choice.message.tool_calls:
            assert call.function.name == "find_lantern"
            result = _price(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    assert len(messages) == 3
    assert choice.finish_reason == "stop"
    assert "84" in choice.message.content


def test_a_stream_is_put_together_by_the_sdk(client):
    whole = client.chat.completions.create(model="demo", messages=[QUESTION], tools=TOOLS, temperature=0)
    with client.chat.completions.stream(
        model="demo", messages=[QUESTION], tools=TOOLS, temperature=0
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (called,) = whole.choices[0].message.tool_calls
    (call,) = final.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == (called.function.name, called.function.arguments)
    assert call.function.parsed_arguments == {"color": "red", "size": 12}
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.content is None
    (done,) = (event for event in events if event.type == "tool_calls.function.arguments.done")
    assert (done.name, done.index, done.parsed_arguments) == ("find_lantern", 0, {"color": "red", "size": 12})


def test_every_chunk_of_a_call_has_openais_shape(client):
    with client.chat.completions.with_streaming_response.create(
        model="demo", messages=[QUESTION], tools=TOOLS, temperature=0, stream=True
    ) as response:
        chunks = valid_chat_chunks("".join(response.iter_text()))
    *reasons, last = (chunk.choices[0].finish_reason for chunk in chunks)
    assert (set(reasons), last) == ({None}, "tool_calls")
    begun = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or () if call.id]
    assert len(begun) == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_required_call_is_made_whatever_is_said(client, seed):
    answer = client.chat.completions.create(
        model="demo",
        messages=[HELLO],
        tools=FREE,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=2,
        seed=seed,
        max_tokens=150,
    )
    (choice,) = answer.choices
    if choice.finish_reason == "length":
        assert choice.message.content.startswith('<tool_call>\n{"name": "')
        return
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    if call.function.name == "find_lantern":
        assert {name: type(value) for name, value in arguments.items()} == {"color": str, "size": int}
    else:
        assert call.function.name == "set_lamp"
        assert arguments in ({"state": "on"}, {"state": "off"})


@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_a_named_function_is_called_with_arguments_of_its_schema(client, draft):
    answer = client.chat.completions.create(
        model="demo",
        messages=[QUESTION],
        tools=FREE,
        tool_choice={"type": "function", "function": {"name": "set_lamp"}},
        parallel_tool_calls=False,
        temperature=0,
        extra_body={"draft": {"type": draft}},
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "set_lamp"
    assert json.loads(call.function.arguments)["state"] in ("on", "off")


def test_a_stream_of_several_choices_keeps_their_calls_apart(client):
    chunks = client.chat.completions.create(
        model="demo", messages=[QUESTION], tools=TOOLS, temperature=0, n=2, stream=True
    )
    calls = {}
    for chunk in chunks:
        for choice in chunk.choices:
            begun = [call for call in choice.delta.tool_calls or [] if call.id]
            calls.setdefault(choice.index, []).extend(begun)
    assert {index: [call.index for call in made] for index, made in calls.items()} == {0: [0], 1: [0]}


def test_a_call_that_is_cut_short_is_text(client):
    answer = client.chat.completions.create(
        model="demo", messages=[QUESTION], tools=TOOLS, temperature=0, max_tokens=12
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("<tool_call>\n")
    assert choice.message.tool_calls is None


def test_with_none_nothing_is_called(client):
    answer = client.chat.completions.create(
        model="demo", messages=[HELLO], tools=TOOLS, tool_choice="none", temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_a_form_of_content_may_stand_beside_tools(client):
    form = {"type": "json_schema", "json_schema": {"name": "lamp", "schema": LAMP, "strict": True}}
    asked = {"model": "demo", "tools": TOOLS, "response_format": form, "temperature": 0}
    (choice,) = client.chat.completions.create(messages=[QUESTION], **asked).choices
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": "{}"}
    messages = [QUESTION, choice.message.model_dump(exclude_unset=True), result]
    (choice,) = client.chat.completions.create(messages=messages, **asked).choices
    assert choice.message.tool_calls or json.loads(choice.message.content)["state"] in ("on", "off")


@pytest.mark.parametrize("word", ["not", "propertyNames"])
def test_a_schema_that_cannot_be_enforced_is_refused_before_anything_runs(client, word):
    tool = _tool("f", "", {"type": "object", "properties": {"a": {word: {"type": "string"}}}}, True)
    with pytest.raises(openai.BadRequestError) as told:
        client.chat.completions.create(model="demo", messages=[HELLO], tools=[tool])
    assert word in told.value.message
    assert told.value.param.startswith("tools")
