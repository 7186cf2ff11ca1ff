from dataclasses import replace

import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.models import AnswerLimits
from reprise.server.errors import BadRequestError
from reprise.server.generation.prepare import Prompts, choice_seed, make_engine_requests
from reprise.server.requests.completions import CompletionRequest
from tests.server.openai_shapes import assert_error


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_first_choice_has_the_requests_seed_and_the_others_differ(seed):
    seeds = [choice_seed(seed, choice) for choice in range(64)]
    assert seeds[0] == seed % 2**64
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= value < 2**64 for value in seeds)


async def test_without_a_seed_every_choice_gets_a_different_one(client, engine):
    for _ in range(5):
        await client.post("/v1/completions", json={"prompt": "a", "n": 2})
    assert len({request.sampling.seed for request in engine.requests}) == 10


async def test_a_temperature_that_would_overflow_the_logits_is_greedy(client, engine):
    await client.post("/v1/completions", json={"prompt": "a", "temperature": 1e-300})
    assert engine.requests[0].sampling.temperature == 0.0


async def test_more_sequences_than_the_server_holds_are_refused_for_good(client, engine):
    response = await client.post("/v1/completions", json={"prompt": ["a"] * 64, "n": 8})
    assert response.status_code == 400
    message = assert_error(response.json(), "prompt", "invalid_value")
    assert "are 512 sequences; this server holds at most 264" in message
    assert engine.requests == []


def test_more_choices_of_one_prompt_than_the_server_holds_are_the_fault_of_n(engine):
    body, small = CompletionRequest(prompt="a", n=4), Settings(max_rows=1, max_queue=2)
    with pytest.raises(BadRequestError, match="are 4 sequences") as refused:
        make_engine_requests("r", body, Prompts([(1,)]), engine.info, small)
    assert refused.value.param == "n"


async def test_the_default_length_comes_from_the_settings(engine):
    body = CompletionRequest(prompt="a")
    (order,) = make_engine_requests("r", body, Prompts([(1,)]), engine.info, Settings(default_max_tokens=7))
    assert order.max_tokens == 7


@pytest.mark.parametrize(
    ("fields", "setting", "wanted"),
    [
        ({}, {}, (300, 70)),
        ({}, {"default_max_tokens": 7}, (7, 70)),
        ({"max_tokens": 400}, {}, (400, 0)),
        ({}, {"sampling_defaults": "openai"}, (999, 2048)),
    ],
)
def test_a_model_s_own_limits_hold_where_nothing_else_is_said(engine, fields, setting, wanted):
    info = replace(engine.info, answer_limits=AnswerLimits(300, 70))
    body = CompletionRequest(prompt="a", **fields)
    (order,) = make_engine_requests("r", body, Prompts([(1,)]), info, Settings(**setting))
    assert (order.max_tokens, order.loop_guard_tokens) == wanted


@pytest.mark.parametrize(
    ("fields", "setting", "wanted"),
    [
        ({}, {}, 2048),
        ({}, {"default_max_tokens": 9}, 2048),
        ({"max_tokens": 9000}, {}, 0),
        ({"max_tokens": 9000, "loop_guard_tokens": 500}, {}, 500),
        ({"loop_guard_tokens": 0}, {}, 0),
        ({"loop_guard_tokens": 500}, {}, 500),
    ],
)
def test_a_request_that_sets_a_limit_of_tokens_has_no_loop_guard_unless_it_asks_for_it(
    engine, fields, setting, wanted
):
    body = CompletionRequest(prompt="a", **fields)
    (order,) = make_engine_requests("r", body, Prompts([(1,)]), engine.info, Settings(**setting))
    assert order.loop_guard_tokens == wanted


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/v1/completions", {"prompt": "a"}, "prompt"),
    ],
)
async def test_a_text_with_a_token_that_the_weights_lack_is_a_400(client, engine, path, body, param):
    engine.info = replace(engine.info, vocab_size=ord("a"))
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert_error(response.json(), param, "invalid_token_id")
    assert engine.requests == []
