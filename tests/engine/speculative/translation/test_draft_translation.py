"""A draft model with another vocabulary never changes the answer, and its drafts are reported."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.batch.batch import Device
from reprise.engine.engine import Engine
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.request import DraftChoice, GenerationRequest, Grammar, Sampling
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.sampling.sampler import RowSampling, Sampler
from reprise.engine.speculative.draft_model.forecast import DraftForecast
from reprise.engine.speculative.draft_model.model import make_draft_sampling
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.speculative.translation import UNMATCHED, Translation
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.support import CONFIGS, Answer, ask, make_loaded, make_model, oracle, prompt_of, request
from tests.engine.text import tokenizers_zoo as zoo

STRATEGIES = ["context", "shared", "none"]
DRAFTS = ["llama", "gemma3_text", "mamba2", "baichuan_m1"]
"""Architectures with plain caches, windows, recurrent state, and lists of both."""


def make_foreign(name: str, kind: str = "sentencepiece-first", context: int | None = None) -> LoadedModel:
    """Make a random model with a small tokenizer; like many models it has more ids than its tokenizer."""
    tokenizer = zoo.make(kind)
    size = tokenizer.vocab_size + 12
    model = make_model(name, vocab_size=size)
    return LoadedModel(model, tokenizer, describe(model, CONFIGS[name], name, size, context, 0.0))


@pytest.fixture
def start(start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Start engines that keep asking the draft model, although drafts of a random one are never accepted."""
    monkeypatch.setattr(DraftForecast, "rate", 0.9)
    monkeypatch.setattr(Device, "lap", lambda *_: None)

    def start(name: str, make_draft: Callable[[], LoadedModel], **settings: Any) -> Engine:
        given = {"draft_type": "draft-model", "num_draft_tokens": 4, "prefill_chunk_tokens": 16} | settings
        return start_engine(
            name,
            make_sources=lambda _: DraftSources({}, scored(0.0)),
            load_draft=lambda _: make_draft(),
            draft_model="the one that load_draft makes",
            **given,
        )

    return start


def requests() -> list[GenerationRequest]:
    return [
        request(prompt_of(length, i), 9 + 3 * i, name=str(i), temperature=0.8 * (i > 0), seed=i)
        for i, length in enumerate([40, 3, 90, 17])
    ]


@functools.cache
def answers_of(name: str) -> dict[tuple[int, ...], list[int]]:
    loaded = make_loaded(name)
    return {one.prompt: oracle(loaded, one) for one in requests()}


def run(engine: Engine, asked: Sequence[GenerationRequest]) -> list[list[int]]:
    answers: list[Answer] = [ask(engine, one) for one in asked]
    return [list(answer.finished().tokens) for answer in answers]


@pytest.mark.parametrize(
    ("name", "draft", "strategy"),
    [
        *(("llama", draft, "context") for draft in DRAFTS),
        *(("llama", "llama", strategy) for strategy in STRATEGIES[1:]),
        ("mamba2", "lfm2", "context"),
    ],
)
def test_a_draft_model_of_another_vocabulary_never_changes_the_tokens(
    name: str, draft: str, strategy: str, start: Callable[..., Engine]
) -> None:
    asked, expected = requests()[:3], answers_of(name)
    engine = start(name, lambda: make_foreign(draft), draft_translation=strategy)
    answers = [ask(engine, one) for one in asked]
    finished = [answer.finished() for answer in answers]
    assert [list(one.tokens) for one in finished] == [expected[one.prompt] for one in asked]
    report = finished[2].usage.drafting
    assert report.strategy == strategy
    assert report.translation["translated"]
    assert report.num_drafted


@pytest.mark.parametrize("kind", ["byte-level-beginning", "unigram", "characters", "lower-case"])
def test_no_kind_of_tokenizer_changes_the_answer(kind: str, start: Callable[..., Engine]) -> None:
    asked, expected = requests()[:2], answers_of("llama")
    engine = start("llama", lambda: make_foreign("llama", kind))
    assert run(engine, asked) == [expected[one.prompt] for one in asked]


def test_a_model_that_drafts_for_itself_in_shared_tokens_is_always_right(
    start: Callable[..., Engine],
) -> None:
    asked, expected = requests(), answers_of("llama")
    engine = start("llama", lambda: make_loaded("llama"), draft_translation="shared")
    for one in asked:
        finished = ask(engine, one).finished()
        assert list(finished.tokens) == expected[one.prompt]
        assert finished.usage.drafting.num_accepted == finished.usage.drafting.num_drafted > 0


def test_one_vocabulary_needs_no_translation(start: Callable[..., Engine]) -> None:
    engine = start("llama", lambda: make_loaded("llama"))
    assert engine.info.draft_strategy == "none"
    assert ask(engine, requests()[0]).finished().usage.drafting.strategy == "none"
    assert start("llama", lambda: make_foreign("llama")).info.draft_strategy == "context"


def test_a_vocabulary_whose_bytes_are_unknown_is_refused_with_the_reason(
    start: Callable[..., Engine],
) -> None:
    wordpiece = zoo.wrap(zoo.wordpiece(), eos_token="[SEP]", unk_token="[UNK]")
    foreign = dataclasses.replace(make_foreign("llama"), tokenizer=wordpiece)
    with pytest.raises(
        ModelError, match=r"llama cannot draft for llama: its tokenizer .* of the same family"
    ):
        start("llama", lambda: foreign)


def test_a_text_beyond_the_draft_model_s_context_is_answered_without_it(
    start: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    asked, expected = requests(), answers_of("llama")
    with caplog.at_level(logging.INFO, "reprise"):
        engine = start("llama", lambda: make_foreign("llama", "characters", context=220))
        finished = [ask(engine, one).finished() for one in asked]
    assert [list(one.tokens) for one in finished] == [expected[one.prompt] for one in asked]
    # The request with a short prompt exceeds the context later.
    assert [one.usage.drafting.num_drafted > 0 for one in finished] == [True, True, False, True]
    assert "the draft model's context is 220 tokens; it drafts nothing for longer texts" in caplog.text
    assert "request 2 continues without the draft model: the draft model reads 220 tokens" in caplog.text


@pytest.mark.parametrize("method", ["make_translator", "translate_text", "translate_draft"])
def test_a_translator_that_raises_ends_the_drafts_of_its_request_alone(
    method: str, start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, expected = requests(), answers_of("llama")
    begin, num_begun = Translation.make_translator, 0

    def begin_faulty(self: Translation) -> Any:
        nonlocal num_begun
        num_begun += 1
        if num_begun != 2:
            return begin(self)

        def fail(*_: object) -> None:
            raise RuntimeError("a fault in a tokenizer")

        if method == "make_translator":
            fail()
        translator = begin(self)
        setattr(translator, method, fail)
        return translator

    monkeypatch.setattr(Translation, "make_translator", begin_faulty)
    engine = start("llama", lambda: make_foreign("llama"), prefill_chunk_tokens=512)
    answers = [ask(engine, one) for one in asked]
    finished = [answer.finished() for answer in answers]
    assert [list(one.tokens) for one in finished] == [expected[one.prompt] for one in asked]
    # Which row is the second to join depends on when the requests arrive.
    assert sorted(one.usage.drafting.num_drafted > 0 for one in finished) == [False, True, True, True]


def test_a_preempted_row_is_read_again_and_keeps_its_counts(
    start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, expected = requests()[1:], answers_of("llama")
    make_room, num_asked = MemoryBudget.make_room, 0

    def make_room_except_twice(*args: Any) -> bool:
        nonlocal num_asked
        num_asked += 1
        # The youngest row is preempted.
        return num_asked not in (12, 14) and make_room(*args)

    monkeypatch.setattr(MemoryBudget, "make_room", make_room_except_twice)
    engine = start("llama", lambda: make_foreign("mamba2"), prefix_cache_bytes=0)
    answers = [ask(engine, one) for one in asked]
    finished = [answer.finished() for answer in answers]
    assert [list(one.tokens) for one in finished] == [expected[one.prompt] for one in asked]
    assert engine.counts().num_preemptions == 2
    for one in finished:
        report = one.usage.drafting
        assert report.translation["translated"] >= len(report.by_position) > 0


def test_requests_that_end_early_or_want_fewer_drafts_do_not_change_others(
    start: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    asked, expected = requests(), answers_of("llama")
    engine = start("llama", lambda: make_foreign("gemma3_text"), max_rows=3)
    left = Answer()
    left.on_delta = functools.partial(engine.cancel, "left")
    engine.submit(dataclasses.replace(asked[3], id="left"), left)
    answers = [ask(engine, one) for one in asked]
    left.end()
    assert [list(answer.finished().tokens) for answer in answers] == [expected[one.prompt] for one in asked]
    # Again beside a request that limits the drafted tokens and one that wants no drafts.
    few = dataclasses.replace(asked[1], id="few", draft=DraftChoice("draft-model", 1))
    none = dataclasses.replace(asked[2], id="none", draft=DraftChoice("none"))
    finished = [answer.finished() for answer in [ask(engine, few), ask(engine, none)]]
    assert [list(one.tokens) for one in finished] == [expected[one.prompt] for one in (few, none)]
    assert len(finished[0].usage.drafting.by_position) == 1
    assert finished[1].usage.drafting.strategy is None
    assert "failed" not in caplog.text


SETTINGS = [
    {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "min_p": 0.01},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3, "temperature": 0.5},
    {"frequency_penalty": 5.0, "logit_bias": tuple((token, 300.0) for token in range(300, 340))},
]


@pytest.mark.parametrize("strategy", ["context", "shared"])
def test_penalties_filters_bias_and_grammars_are_kept(
    strategy: str, start_engine: StartEngine, start: Callable[..., Engine]
) -> None:
    asked = [request(prompt_of(20 + i, i), 12, name=str(i), **s) for i, s in enumerate(SETTINGS)]
    grammar = Grammar("regex", "[a-z ]{3,30}")
    asked.append(dataclasses.replace(request(prompt_of(12, 5), 24, name="g"), grammar=grammar))
    plain = run(start_engine("llama"), asked)
    engine = start("llama", lambda: make_foreign("llama"), draft_translation=strategy)
    assert run(engine, asked) == plain


def test_exact_mode_keeps_its_widths(start: Callable[..., Engine]) -> None:
    asked, expected = requests()[:2], answers_of("llama")
    engine = start("llama", lambda: make_foreign("llama"), exact=True, max_rows=2)
    assert run(engine, asked) == [expected[one.prompt] for one in asked]


def test_shared_tokens_are_drawn_with_the_target_s_noise() -> None:
    target = zoo.make("byte-level-polish")
    translation = Translation.between(zoo.make("sentencepiece-first"), target, "context")
    assert translation.pair is not None
    to_target = translation.pair.token_map.to_target
    shared = np.flatnonzero(to_target != UNMATCHED)
    rng = np.random.default_rng(3)
    rows = [Sampling(seed, 0.8 + seed, top_k=seed % 2 * 9, min_p=0.01 * seed) for seed in range(3)]
    for positions in ([5, 5, 900], [6, 7, 0]):
        ours = np.full((3, len(to_target)), -np.inf, np.float32)
        theirs = np.full((3, target.vocab_size), -np.inf, np.float32)
        ours[:, shared] = rng.normal(size=(3, len(shared)))
        theirs[:, to_target[shared]] = ours[:, shared]
        sampler = Sampler([RowSampling(row, target.vocab_size) for row in rows], target.vocab_size)
        draw = make_draft_sampling(translation)(sampler, positions, 4)
        for at in range(4):
            drawn = np.array(draw(mx.array(ours)))
            wanted = sampler.sample(mx.array(theirs), [position + at for position in positions])
            assert to_target[drawn].tolist() == wanted.tolist()


def test_penalties_and_bias_apply_to_shared_tokens() -> None:
    target = zoo.make("byte-level-polish")
    translation = Translation.between(zoo.make("sentencepiece-first"), target, "context")
    assert translation.pair is not None
    to_target = translation.pair.token_map.to_target
    first, second, third = np.flatnonzero(to_target != UNMATCHED)[-3:].tolist()
    sampling = Sampling(
        0, 0.0, frequency_penalty=4.0, repetition_penalty=2.0, logit_bias=((int(to_target[second]), -3.0),)
    )
    row = RowSampling(sampling, target.vocab_size, [], [int(to_target[first])])
    sampler = Sampler([row], target.vocab_size)
    logits = np.full((1, len(to_target)), -9.0, np.float32)
    logits[0, [first, second, third]] = 3.0, 2.5, 1.0
    draw = make_draft_sampling(translation)(sampler, [1], 1)
    assert draw(mx.array(logits)).tolist() == [third]
