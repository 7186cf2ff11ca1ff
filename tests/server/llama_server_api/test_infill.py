"""suffix in completions, and /infill: a model of code is asked for what is between two texts."""

import json
from dataclasses import replace

import pytest

from reprise.engine.text.markers import FimTokens
from reprise.server.llama_server_api.infill import InfillPresenter
from reprise.server.output.parts import EndPart, TextPart
from reprise.server.prompt.encoder import Hole, encode_hole
from tests.engine.text.test_call_formats import make
from tests.engine.text.test_fim import QWEN
from tests.server.fake_engine import FakeTokenizer, says
from tests.server.openai_shapes import assert_error

COMPLETIONS, INFILL = "/v1/completions", "/infill"
FIM = FimTokens(200, 201, 202, file=203, ends=(200, 201, 202, 203, 204))


@pytest.fixture
def coder(engine):
    engine.tokenizer.fim = FIM
    engine.script = says("b", "c")
    return engine


def ids(*parts):
    return tuple(token for part in parts for token in ([part] if isinstance(part, int) else part.encode()))


@pytest.mark.parametrize(
    ("fim", "wanted"),
    [
        (FIM, ids(200, "ab", 201, "yz", 202)),
        (replace(FIM, is_suffix_first=True), ids(201, "yz", 200, "ab", 202)),
        (replace(FIM, is_suffix_first=True, middle=None), ids(201, "yz", 200, "ab")),
    ],
)
def test_the_prompt_has_both_texts_between_the_tokens(fim, wanted):
    assert encode_hole(FakeTokenizer(), fim, Hole("ab", "yz"), True) == wanted


def test_other_files_come_first():
    hole = Hole("ab", "yz", [("x.py", "1"), ("y.py", "2")])
    written = ids(203, "x.py\n1", 203, "y.py\n2", 203, "filename\n", 200, "ab", 201, "yz", 202)
    assert encode_hole(FakeTokenizer(), FIM, hole, True) == written
    plain = "\n\n--- snippet ---\n\n"
    without = ids(f"{plain}1{plain}2", 200, "ab", 201, "yz", 202)
    assert encode_hole(FakeTokenizer(), replace(FIM, file=None), hole, True) == without


def test_a_real_tokenizer_s_prompt_begins_as_its_prompts_do():
    tokenizer = make(QWEN)
    prompt = encode_hole(tokenizer, tokenizer.fim, Hole("def f(", "): pass"), True)
    opening = tokenizer.encode("x")[: -len(tokenizer.encode_answer("x"))]
    assert prompt[: len(opening) + 1] == (*opening, tokenizer.fim.prefix)
    assert tokenizer.decode(prompt[len(opening) :]) == f"{QWEN[0]}def f({QWEN[1]}): pass{QWEN[2]}"


async def test_a_completion_has_a_suffix(client, coder):
    body = {"prompt": "a", "suffix": "d", "stop_token_ids": [7]}
    answer = (await client.post(COMPLETIONS, json=body)).json()
    assert answer["choices"][0]["text"] == "bc"
    (asked,) = coder.requests
    assert asked.prompt == ids(200, "a", 201, "d", 202)
    assert asked.stop_tokens == (7, *FIM.ends)


async def test_the_prompt_before_a_suffix_is_echoed_as_it_was_sent(client, coder):
    body = {"prompt": "a", "suffix": "d", "echo": True, "logprobs": 0}
    answer = (await client.post(COMPLETIONS, json=body)).json()
    assert answer["choices"][0]["text"] == "abc"
    # None of the prompt's, whose tokens are others than those of its text.
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 2
    (asked,) = coder.requests
    assert asked.prompt == ids(200, "a", 201, "d", 202)
    assert not asked.prompt_logprobs


@pytest.mark.parametrize("suffix", ["", None])
async def test_an_empty_suffix_is_none(client, engine, suffix):
    assert (await client.post(COMPLETIONS, json={"prompt": "a", "suffix": suffix})).status_code == 200
    assert engine.requests[-1].prompt == ids("a")


@pytest.mark.usefixtures("coder")
@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": 3}, {"prompt": [1, 2]}])
async def test_a_suffix_needs_the_whole_text(client, fields):
    response = await client.post(COMPLETIONS, json={"prompt": "a", "suffix": "d", **fields})
    assert response.status_code == 400
    assert_error(response.json(), "suffix", "invalid_value")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "suffix": "d"}, "suffix"),
        (INFILL, {"input_prefix": "a"}, "input_suffix"),
    ],
)
async def test_a_model_without_the_tokens_says_so(client, engine, path, body, param):
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert "fill-in-the-middle" in assert_error(response.json(), param, "fim_not_supported")
    assert engine.requests == []


AS_EDITORS_ASK = {
    "input_prefix": "a\n",
    "input_suffix": "\nz",
    "prompt": "  b",
    "input_extra": [{"filename": "x.py", "text": "1"}],
    "n_predict": 12,
    "samplers": ["top_k"],
    "cache_prompt": True,
    "t_max_predict_ms": 500,
    "n_indent": 2,
}


async def test_infill_answers_as_llama_server_does(client, coder):
    response = await client.post(INFILL, json=AS_EDITORS_ASK)
    answer = response.json()
    assert response.status_code == 200, answer
    assert coder.requests[-1].prompt == ids(203, "x.py\n1", 203, "filename\n", 200, "a\n  b", 201, "\nz", 202)
    assert coder.requests[-1].max_tokens == 12
    assert (answer["content"], answer["stop"], answer["stop_type"]) == ("bc", True, "eos")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (2, len(coder.requests[-1].prompt))
    assert answer["timings"]["predicted_n"] == 2


@pytest.mark.usefixtures("coder")
async def test_infill_streams(client):
    response = await client.post(INFILL, json=AS_EDITORS_ASK | {"stream": True})
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert "".join(event["content"] for event in events) == "bc"
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["tokens_predicted"] == 2


@pytest.mark.parametrize("is_together", [False, True])
def test_a_stream_ends_as_the_first_of_several_choices_does(is_together):
    own, other = [(0, TextPart("a")), (0, EndPart("stop", "x"))], [(1, EndPart("length"))]
    presenter = InfillPresenter("coder")
    usage = {"completion_tokens": 2, "prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    frames = b"" if is_together else presenter.format_parts(own)
    frames += presenter.format_end([*other, *own] if is_together else other, usage, {})
    said, end = (json.loads(line[6:]) for line in frames.splitlines() if line)
    assert (said["content"], end["stop_type"], end["stopping_word"]) == ("a", "word", "x")


async def test_an_editor_can_have_a_prompt_cached(client, coder):
    answer = (await client.post(INFILL, json=AS_EDITORS_ASK | {"n_predict": 0})).json()
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert coder.requests[-1].max_tokens == 1
