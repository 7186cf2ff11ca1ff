"""Log probabilities in OpenAI's two formats. A token of the fake engine is one byte."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reprise.engine.interface.events import Delta, Finished, TokenLogprob, Usage
from reprise.server.openai_api.chat import CompletionLogprobs, CompletionPresenter
from reprise.server.output.parser_base import LogprobAlignment
from reprise.server.output.parts import ChoiceOutput, PromptPart, TextPart
from reprise.server.output.presenter import ResponseHead, chat_logprobs
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.fields import validate
from tests.server.fake_engine import says
from tests.server.openai_shapes import (
    assert_error,
    stream_data,
    valid_chat,
    valid_chat_chunks,
    valid_completion,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


async def chat(client, **fields):
    response = await client.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    return response


async def complete(client, **fields):
    response = await client.post(COMPLETIONS, json={"prompt": "hello", **fields})
    assert response.status_code == 200, response.text
    return response


def entry_of(piece: bytes, logprob: float = -1.0, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return TokenLogprob(0, piece, logprob, top)


async def test_chat_logprobs_have_the_sampled_token_and_the_most_likely_ones(client, engine):
    engine.script = says("az")
    answer = valid_chat((await chat(client, logprobs=True, top_logprobs=2)).json())
    first, second = answer.choices[0].logprobs.content
    assert answer.choices[0].logprobs.refusal is None
    assert (first.token, first.bytes, first.logprob) == ("a", [97], -97 / 4)
    assert [(one.token, one.bytes, one.logprob) for one in first.top_logprobs] == [
        ("a", [97], -0.25),
        ("b", [98], -0.5),
    ]
    assert (second.token, second.logprob) == ("z", -122 / 4)
    assert "z" not in {one.token for one in second.top_logprobs}


async def test_chat_logprobs_are_off_by_default_and_alternatives_are_optional(client, engine):
    engine.script = says("a")
    assert valid_chat((await chat(client)).json()).choices[0].logprobs is None
    assert engine.requests[-1].top_logprobs is None
    assert valid_chat((await chat(client, logprobs=False, top_logprobs=0)).json()).choices[0].logprobs is None
    (entry,) = valid_chat((await chat(client, logprobs=True)).json()).choices[0].logprobs.content
    assert entry.top_logprobs == []
    assert engine.requests[-1].top_logprobs == 0


@pytest.mark.parametrize("text", ["plain", "é ✓ 🙂", ""])
async def test_a_stream_has_the_same_logprobs_as_a_whole_response(client, engine, text):
    engine.script = says(*text)
    whole = valid_chat((await chat(client, logprobs=True, top_logprobs=3)).json()).choices[0]
    chunks = valid_chat_chunks((await chat(client, logprobs=True, top_logprobs=3, stream=True)).text)
    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.message.content == text
    logprobs = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert logprobs == whole.logprobs.content
    assert bytes(byte for entry in logprobs for byte in entry.bytes) == text.encode()


async def test_tokens_of_an_incomplete_character_have_logprobs_at_once(client, engine):
    def script(_, job):
        job.sink(Delta("", (entry_of(b"\xe2"),)))
        job.sink(Delta("", (entry_of(b"\x9c"),)))
        job.sink(Delta("✓", (entry_of(b"\x93"),)))
        return Finished("stop", Usage(), (0xE2, 0x9C, 0x93))

    engine.script = script
    whole = valid_chat((await chat(client, logprobs=True)).json()).choices[0]
    assert whole.message.content == "✓"
    assert [(entry.token, entry.bytes) for entry in whole.logprobs.content] == [
        ("\ufffd", [0xE2]),
        ("\ufffd", [0x9C]),
        ("\ufffd", [0x93]),
    ]
    chunks = valid_chat_chunks((await chat(client, logprobs=True, stream=True)).text)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "✓"
    all_logprobs = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [entry for logprobs in all_logprobs for entry in logprobs.content] == whole.logprobs.content


async def test_a_completion_has_logprobs_as_parallel_lists(client, engine):
    engine.script = says("a", "é", "z")
    logprobs = valid_completion((await complete(client, logprobs=1)).json()).choices[0].logprobs
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "z"]
    assert logprobs.token_logprobs == [-97 / 4, -0xC3 / 4, -0xA9 / 4, -122 / 4]
    assert logprobs.text_offset == [0, 1, 1, 2]
    assert logprobs.top_logprobs[3] == {"a": -0.25, "z": -122 / 4}


async def test_top_logprobs_of_a_completion_include_the_sampled_token_even_with_logprobs_0(client, engine):
    engine.script = says("z")
    logprobs = valid_completion((await complete(client, logprobs=0)).json()).choices[0].logprobs
    assert logprobs.top_logprobs == [{"z": -122 / 4}]
    assert valid_completion((await complete(client)).json()).choices[0].logprobs is None


def streamed(body: str, index: int = 0) -> tuple[str, dict[str, list]]:
    """Return the text and the log probabilities of a choice, collected from all chunks."""
    *chunks, done = stream_data(body)
    assert done == "[DONE]"
    text, logprobs = "", {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in (choice for chunk in chunks for choice in json.loads(chunk)["choices"]):
        if choice["index"] != index:
            continue
        text += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            logprobs[name] += values
    return text, logprobs


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "n": 2}])
async def test_a_completion_stream_has_the_same_logprobs_as_a_whole_response(client, engine, fields):
    engine.script = says(*"wörld")
    whole = (await complete(client, prompt="hé ", logprobs=2, **fields)).json()
    body = (await complete(client, prompt="hé ", logprobs=2, stream=True, **fields)).text
    for choice in whole["choices"]:
        text, logprobs = streamed(body, choice["index"])
        assert (text, logprobs) == (choice["text"], choice["logprobs"])
        assert text == ("hé wörld" if fields else "wörld")
        assert [text[at] for at in logprobs["text_offset"]] == [
            character for character in text for _ in character.encode()
        ]


async def test_a_long_prompt_whose_deltas_arrive_together_is_formatted_in_pieces(client, engine):
    def send_together(fake, job):
        deltas, sink = [], job.sink
        job.sink = deltas.append
        end = says("!")(fake, job)
        job.sink = sink
        for delta in deltas:
            sink(delta)
        return end

    engine.script = send_together
    fields = {"prompt": "ab" * 450, "echo": True, "logprobs": 1}
    whole = (await complete(client, **fields)).json()["choices"][0]
    body = (await complete(client, **fields, stream=True)).text
    assert streamed(body) == (whole["text"], whole["logprobs"])
    choices = [choice for chunk in stream_data(body)[:-1] for choice in json.loads(chunk)["choices"]]
    sizes = [len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"]]
    assert sum(sizes) == 901
    assert max(sizes) < 300


def test_a_whole_response_counts_its_offsets_as_a_stream_does():
    entries = (entry_of(b" Hi"), entry_of(b" you"))
    body = validate({"prompt": "a", "logprobs": 1}, CompletionRequest)
    presenters = [CompletionPresenter(ResponseHead("1", 5, "a", "b"), body) for _ in range(2)]
    whole = presenters[0].format_response([ChoiceOutput(text="Hi you", logprobs=list(entries))], {}, {})
    chunk = presenters[1].format_parts([(0, TextPart("Hi you", entries))])
    for written in (whole, chunk.removeprefix(b"data: ")):
        assert json.loads(written)["choices"][0]["logprobs"]["text_offset"] == [0, 2]


async def test_echo_puts_the_prompt_first(client, engine):
    engine.script = says("a", "b")
    assert (await complete(client, prompt="hey ", echo=True)).json()["choices"][0]["text"] == "hey ab"
    assert not engine.requests[-1].prompt_logprobs
    assert streamed((await complete(client, prompt="hey ", echo=True, stream=True)).text)[0] == "hey ab"


async def test_echo_repeats_each_choices_own_prompt_and_decodes_token_ids(client, engine):
    engine.script = says("!")
    fields = {"prompt": [[104, 105], [121, 111]], "n": 2, "echo": True}
    answers = valid_completion((await complete(client, **fields)).json())
    assert [choice.text for choice in answers.choices] == ["hi!", "hi!", "yo!", "yo!"]
    body = (await complete(client, **fields, stream=True)).text
    assert [streamed(body, index)[0] for index in range(4)] == ["hi!", "hi!", "yo!", "yo!"]


async def test_echo_repeats_the_prompt_even_if_nothing_follows(client, engine):
    engine.script = says()
    for fields in ({}, {"logprobs": 1}):
        answer = (await complete(client, prompt="hey", echo=True, **fields)).json()["choices"][0]
        assert answer["text"] == "hey"
        assert (
            streamed((await complete(client, prompt="hey", echo=True, stream=True, **fields)).text)[0]
            == "hey"
        )


async def test_echo_with_logprobs_includes_the_prompts_tokens_with_null_for_the_first(client, engine):
    engine.script = says("c")
    logprobs = (await complete(client, prompt="ab", echo=True, logprobs=1)).json()["choices"][0]["logprobs"]
    assert engine.requests[-1].prompt_logprobs
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["token_logprobs"] == [None, -98 / 4, -99 / 4]
    assert logprobs["top_logprobs"] == [None, {"a": -0.25, "b": -98 / 4}, {"a": -0.25, "c": -99 / 4}]
    assert logprobs["text_offset"] == [0, 1, 2]


def test_a_probability_of_zero_is_a_finite_number():
    entries = [entry_of(b"x", -math.inf, (1, b"y", math.nan)), entry_of(b"x", -10_000.0)]
    (first, second) = chat_logprobs(entries)
    assert (first["logprob"], first["top_logprobs"][0]["logprob"], second["logprob"]) == (
        -9999.0,
        -9999.0,
        -9999.0,
    )
    logprobs = CompletionLogprobs().add(TextPart("xx", entries))
    assert logprobs["token_logprobs"] == [-9999.0, -9999.0]


def test_offsets_skip_tokens_that_are_not_in_the_prompts_text():
    tokens = CompletionLogprobs()
    prompt = [TokenLogprob(1, b"<s>", None), entry_of(b" Hello"), entry_of(b" you")]
    assert tokens.add(PromptPart("Hello you", prompt))["text_offset"] == [0, 0, 5]
    assert tokens.add(TextPart("!!", [entry_of(b"!"), entry_of(b"!")]))["text_offset"] == [9, 10]


def test_offsets_skip_a_leading_space_that_the_text_does_not_have():
    part = TextPart("Hi you", [entry_of(b" Hi"), entry_of(b" you")])
    assert CompletionLogprobs().add(part)["text_offset"] == [0, 2]


PARTS = [
    b"a",
    b"bc",
    b"\x80",
    b"\xff",
    b"\xc5",
    b"\xbc",
    b"\xe4\xb8",
    b"\xad",
    b"d\xf0\x9f",
    b"\x98\x80e",
    "中".encode(),
]
BROKEN = st.lists(st.sampled_from(PARTS) | st.binary(min_size=1, max_size=3), max_size=9)


@given(BROKEN)
@example([b"\xe4", b"\xb8", b"a"])
@example([b"\xe0", b"\x80", b"a"])
def test_offsets_are_those_of_the_text_whatever_the_bytes(tokens):
    text = b"".join(tokens).decode(errors="replace")
    part = TextPart(text, [entry_of(token) for token in tokens])
    offsets = CompletionLogprobs().add(part)["text_offset"]
    assert offsets == [first_character(tokens, at) for at in range(len(tokens))]


@given(BROKEN, st.data())
@example([b"\xff", b"a", b"b"], None)
def test_stretches_of_text_get_the_tokens_that_start_in_them_whatever_the_bytes(tokens, data):
    text = b"".join(tokens).decode(errors="replace")
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text))))) if data else [*range(len(text))]
    alignment = LogprobAlignment()
    alignment.add([entry_of(token) for token in tokens])
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        expected = [token for at, token in enumerate(tokens) if start <= first_character(tokens, at) < end]
        assert [entry.token_bytes for entry in alignment.take(text[start:end])] == expected
    assert not alignment.take_rest()


def first_character(tokens, at):
    """Return the index of the character in which a token's first byte lies."""
    return len((b"".join(tokens[:at]) + tokens[at][:1]).decode(errors="replace")) - 1


WRONG = [
    (CHAT, {"top_logprobs": 1}, "top_logprobs", "invalid_value", "only with logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value", "20"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "invalid_value", "0"),
    (CHAT, {"logprobs": 1}, "logprobs", "invalid_type", "boolean"),
    (COMPLETIONS, {"logprobs": True}, "logprobs", "invalid_type", "integer"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs", "invalid_value", "20"),
    (COMPLETIONS, {"echo": 1}, "echo", "invalid_type", "boolean"),
    (COMPLETIONS, {"top_logprobs": 1}, "top_logprobs", "unknown_parameter", "Unknown"),
    (CHAT, {"echo": True}, "echo", "unknown_parameter", "Unknown"),
]


@pytest.mark.parametrize(("path", "fields", "param", "code", "phrase"), WRONG, ids=repr)
async def test_wrong_fields_are_400s_that_name_them(strict_client, path, fields, param, code, phrase):
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    response = await strict_client.post(path, json={**prompt, **fields})
    assert response.status_code == 400
    assert phrase in assert_error(response.json(), param, code)
