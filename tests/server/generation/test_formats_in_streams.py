"""Calls in every format through the server: streamed bit by bit, cut anywhere, and stopped anywhere."""

import json

import pytest

from reprise.engine.text.markers import Markers
from reprise.server.tools import formats
from tests.server.fake_engine import marker, says
from tests.server.tools.test_grammar import FORMATS, atem, xtml

PATH = "/v1/chat/completions"
VALUES = {"city": 'Rome "x" ż', "days": 2}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
BODY = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}


STREAMED = FORMATS | {
    "kimi_k3": ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", xtml),
    "muse_spark": ("<atem:function_calls>", "</atem:function_calls>", atem),
}


def test_no_format_is_missing_here():
    assert STREAMED.keys() == formats.FORMATS.keys()


@pytest.fixture(params=STREAMED)
def written(request, engine):
    """A call in one of the formats, which the fake model has from here on."""
    start, end, write = STREAMED[request.param]
    inner = (marker("[ARGS]"),) if request.param == "mistral" else ()
    engine.tokenizer.markers = Markers(
        call_start=marker(start),
        call_end=marker(end) if end else None,
        inner=inner,
        call_format=request.param.removesuffix("_list"),
    )
    return write("get_weather", VALUES)


async def stream(client, engine, pieces, reason="stop"):
    """Return (content, calls by index, finish reason) of a stream of these pieces."""
    engine.script = says(*pieces, reason=reason)
    response = await client.post(PATH, json=BODY | {"stream": True})
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls = {}
    for choice in choices:
        for call in choice["delta"].get("tool_calls", ()):
            calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
    return content, calls, choices[-1]["finish_reason"]


async def test_a_call_is_the_same_however_it_arrives(client, engine, written):
    for pieces in ([written], list(written)):
        content, calls, reason = await stream(client, engine, pieces)
        assert (content, reason) == ("", "tool_calls")
        assert {index: json.loads(text) for index, text in calls.items()} == {0: VALUES}
    engine.script = says(*written)
    whole = (await client.post(PATH, json=BODY)).json()["choices"][0]["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in whole] == [VALUES]


async def test_arguments_arrive_before_the_call_ends(client, engine, written):
    at = written.index("Rome") + 2
    _, calls, _ = await stream(client, engine, [written[:at], *written[at : at + 15]], "length")
    assert "Ro" in calls[0]


@pytest.mark.parametrize("reason", ["length", "stop"])
async def test_a_call_that_is_cut_anywhere_is_a_beginning_of_itself_or_text(client, engine, written, reason):
    """Where max_tokens or a stop string inside the call ends the answer."""
    for cut in range(0, len(written), 7):
        content, calls, end = await stream(client, engine, list(written[:cut]), reason)
        assert end in (reason, "tool_calls")
        assert json.dumps(VALUES, ensure_ascii=False).startswith(calls.get(0, ""))
        if not calls:
            assert content == written[:cut].lstrip() or content == written[:cut]
        engine.script = says(*written[:cut], reason=reason)
        message = (await client.post(PATH, json=BODY)).json()["choices"][0]["message"]
        for call in message.get("tool_calls", ()):
            assert json.loads(call["function"]["arguments"]) == VALUES


@pytest.mark.parametrize("is_whole", [True, False])
async def test_text_after_a_list_of_calls_stays_content(client, engine, is_whole):
    start, _, write = FORMATS["mistral_list"]
    engine.tokenizer.markers = Markers(call_start=marker(start), call_format="mistral")
    text = f"{write('get_weather', VALUES)}\nSo: [1]"
    content, calls, reason = await stream(client, engine, [text] if is_whole else list(text))
    assert (content, json.loads(calls[0]), reason) == ("\nSo: [1]", VALUES, "tool_calls")
