"""Real models answer what mlx_lm's own loop answers, token for token, with any drafts, batch and cache."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import llguidance.numpy
import mlx.core as mx
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from mlx_lm import load, stream_generate
from mlx_lm.models.cache import make_prompt_cache

from reprise.bench.local_engine import LocalEngine
from reprise.config.settings import Settings
from reprise.engine.generating.setup import flat_costs
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, GenerationRequest, Grammar, Sampling
from reprise.engine.kv_cache.prefix_cache.disk import MIN_SAVED_TOKENS
from reprise.engine.sampling.grammar import JSON_STYLE
from reprise.engine.sampling.sampler import noise_key
from tests.engine.support import request
from tests.real_weights.packages import FETCHED_WITHIN_S, GEMMA3, SMOLLM2, Packaged
from tests.real_weights.prompts import PROMPTS
from tests.real_weights.test_conversion import check_log_probabilities, long_text

NUM_TOKENS = 8
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.8, "seed": 7}

MODELS = [("smollm2_folder", None), ("gemma3_folder", "smollm2_folder")]

Processor = Callable[[mx.array, mx.array], mx.array]
Arm = tuple[str, int]
"""A draft type, and how many requests run at once."""


@cache
def loaded(folder: str) -> Any:
    return load(folder)[:2]


@cache
def vocabulary(folder: str) -> Any:
    model, tokenizer = loaded(folder)
    ends = sorted(tokenizer.eos_token_ids)
    return from_tokenizer(tokenizer._tokenizer, model.args.vocab_size, ends, slices=[])


@cache
def read_head(folder: str, head: tuple[int, ...]) -> Any:
    """Return keys and values of tokens."""
    model, _ = loaded(folder)
    kept = make_prompt_cache(model)
    model(mx.array([head]), cache=kept)
    mx.eval([layer.state for layer in kept])
    return kept


@cache
def plain_answer(
    folder: str, head: tuple[int, ...], rest: tuple[int, ...], sampling: Sampling, grammar: Grammar | None
) -> list[int]:
    """Return what mlx_lm's loop answers, with Reprise's noise and llguidance's masks put into it."""
    given: dict[str, Any] = {"logits_processors": [mask(folder, grammar, len(rest))] if grammar else []}
    if sampling.temperature:
        given["sampler"] = drawing(sampling, len(head) + len(rest))
        given["logits_processors"].append(lambda _, logits: logits.astype(mx.float32))
    kept = deepcopy(read_head(folder, head))
    steps = stream_generate(*loaded(folder), list(rest), max_tokens=NUM_TOKENS, prompt_cache=kept, **given)
    return [step.token for step in steps]


def drawing(sampling: Sampling, position: int) -> Callable[[mx.array], mx.array]:
    """Return a sampler that draws with the noise of the positions from this one on."""

    def draw(logits: mx.array) -> mx.array:
        nonlocal position
        key = mx.array(noise_key(sampling.seed, position), mx.uint32)
        position += 1
        return mx.argmax(
            logits / sampling.temperature + mx.random.gumbel(logits.shape[-1:], key=key), axis=-1
        )

    return draw


def mask(folder: str, grammar: Grammar, num_prompt: int) -> Processor:
    """Return what leaves the logits of only those tokens that a grammar allows next."""
    compilers = {
        "json_schema": lambda text: LLMatcher.grammar_from_json_schema(text, defaults=JSON_STYLE),
        "lark": LLMatcher.grammar_from_lark,
    }
    matcher = LLMatcher(vocabulary(folder), compilers[grammar.kind](grammar.text))
    num_read = num_prompt

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        nonlocal num_read
        if read := tokens[num_read:].tolist():
            num_read += len(read)
            matcher.consume_tokens(read)
        if matcher.is_stopped():
            allowed = np.zeros(logits.shape[-1])
            allowed[list(loaded(folder)[1].eos_token_ids)] = 1
        else:
            bits = llguidance.numpy.allocate_token_bitmask(1, logits.shape[-1])
            llguidance.numpy.fill_next_token_bitmask(matcher, bits)
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: logits.shape[-1]]
        return mx.where(mx.array(allowed), logits, -mx.inf)

    return process


def requests(
    local: LocalEngine, names: Sequence[str], samplings: Sequence[dict[str, Any]]
) -> list[GenerationRequest]:
    """Ask every prompt, with each in turn of the samplings' settings if there are several."""
    return [
        replace(
            request(
                PROMPTS[name].tokens(local.engine.tokenizer),
                NUM_TOKENS,
                name=name,
                **samplings[at % len(samplings)],
            ),
            grammar=PROMPTS[name].grammar,
        )
        for at, name in enumerate(names)
    ]


def num_shared(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all prompts begin with."""
    return next(at for at, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1)


def check(local: LocalEngine, asked: Sequence[GenerationRequest], draft: str, at_once: int) -> list[Finished]:
    """Answer without what drafters have learnt from other answers, and compare with mlx_lm's loop."""
    local.engine.table.reset()
    asked = [replace(one, draft=DraftChoice(draft)) for one in asked]
    answers = [
        answer for at in range(0, len(asked), at_once) for answer in local.answer(asked[at : at + at_once])
    ]
    folder, num_head = str(local.engine.settings.model), num_shared([one.prompt for one in asked])
    for one, answered in zip(asked, answers, strict=True):
        expected = plain_answer(
            folder, one.prompt[:num_head], one.prompt[num_head:], one.sampling, one.grammar
        )
        assert list(answered.tokens) == expected, (one.id, draft, at_once, one.sampling.temperature)
    return answers


@pytest.fixture(params=MODELS, ids=["smollm2", "gemma3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Prefixes are kept on disk. SmolLM2 drafts for Gemma 3, which has other tokens."""
    model, draft_model = (name and str(request.getfixturevalue(name)) for name in request.param)
    return Settings(
        model=model, draft_model=draft_model, max_rows=4, prefix_cache_dir=str(tmp_path / "prefixes")
    )


def check_all(
    settings: Settings,
    names: Sequence[str],
    samplings: Sequence[Sequence[dict[str, Any]]],
    before: Sequence[Arm],
    after: Sequence[Arm],
) -> None:
    """Every answer is mlx_lm's. before, after: of a restart, which the prompts' keys and values survive."""
    # Every draft pays.
    with LocalEngine(settings, flat_costs()) as local:
        for arm in before:
            for each in samplings:
                check(local, requests(local, names, each), *arm)
    with LocalEngine(settings, flat_costs()) as local:
        for arm in after:
            for each in samplings:
                answers = check(local, requests(local, names, each), *arm)
                assert all(answered.usage.num_cached_tokens >= MIN_SAVED_TOKENS for answered in answers)


@pytest.mark.slow
@pytest.mark.timeout(FETCHED_WITHIN_S + 400)
@pytest.mark.parametrize("settings", MODELS[:1], ids=["smollm2"], indirect=True)
def test_answers_are_those_of_mlx_lms_loop(settings: Settings) -> None:
    """One prompt of each kind, greedy and seeded in turns."""
    check_all(settings, list(PROMPTS)[:7], [[GREEDY, SEEDED]], [("auto", 4), ("none", 1)], [("auto", 1)])


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_answers_to_all_prompts_in_all_ways_are_those_of_mlx_lms_loop(settings: Settings) -> None:
    drafts = ["none", "auto", *(["draft-model"] if settings.draft_model else [])]
    samplings = [[GREEDY], [SEEDED]]
    arms = [(draft, at_once) for at_once in (1, 4) for draft in drafts]
    check_all(settings, list(PROMPTS), samplings, arms, [(draft, 1) for draft in drafts])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_prompt_of_2000_tokens_is_answered_as_by_mlx_lms_loop(settings: Settings) -> None:
    """That is more than Gemma's window of 512, and than a chunk of prefill."""
    with LocalEngine(settings, flat_costs()) as local:
        prompt = tuple(local.engine.tokenizer.encode(long_text())[:2000])
        expected = plain_answer(str(settings.model), prompt[:1900], prompt[1900:], Sampling(1, 0.0), None)
        for draft in ("auto", "none"):
            asked = replace(request(prompt, NUM_TOKENS), draft=DraftChoice(draft))
            assert list(local.answer([asked])[0].tokens) == expected


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("model", "num_tokens"), [(SMOLLM2, 1600), (GEMMA3, 1100)], ids=["smollm2", "gemma3"]
)
def test_log_probabilities_of_all_texts_are_those_of_llama_cpp(
    model: Packaged, num_tokens: int, tmp_path: Path, llama_cpp: Callable[..., Any]
) -> None:
    check_log_probabilities(model, num_tokens, 1, tmp_path, llama_cpp)
