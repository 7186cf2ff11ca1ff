"""Requests are admitted if memory has room, are preempted if it runs short, and get the same tokens."""

import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.per_row import arrays_of, leaves
from reprise.engine.kv_cache.probes import find_sharing
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.kv_cache.sliding_window import SLACK_TOKENS
from reprise.engine.memory import budget as memory_budget
from reprise.engine.memory import estimate, prefill_plan
from reprise.engine.memory.estimate import Footprint
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import Liar, scored
from tests.engine.driven import Driven, expected_tokens
from tests.engine.foreseeing import foreseeing, no_lookups
from tests.engine.memory.conftest import ROOMY
from tests.engine.support import CONFIGS, VOCAB_SIZE, make_loaded, make_model, oracle, prompt_of, request

NEVER_END = ((2, -100.0),)
WIDE = {"num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 4}
"""Keys and values of 8 KiB per token, far more than all else."""


@pytest.fixture
def free_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling takes no memory. Estimates for requests that are not known yet assume the most of it."""
    monkeypatch.setattr(estimate, "sampling_bytes", lambda *_: 0)
    monkeypatch.setattr(estimate, "PROMPT_LOGPROBS_CHUNK", 0)
    monkeypatch.setattr(estimate, "ROW_SAMPLING_BYTES", 0)


@pytest.fixture
def free_forwards(monkeypatch: pytest.MonkeyPatch, free_sampling: None) -> None:  # noqa: ARG001
    """Only caches count, so that tests know to the byte what fits; and answers need little room to begin."""

    def measure(model: Any, kv_bits: int | None = None, batched: bool = False, *_: Any) -> Footprint:
        measured = estimate.measure(model, kv_bits, batched)
        return replace(measured, layer_bytes=0, fed_bytes=0, seen_bytes=0.0, logits_bytes=0)

    monkeypatch.setattr(memory_budget, "measure", measure)
    monkeypatch.setattr(memory_budget, "ANSWER_TOKENS", 16)


@functools.cache
def wide_model() -> Any:
    return make_model("llama", **WIDE)


def loaded_wide() -> LoadedModel:
    return replace(make_loaded("llama"), model=wide_model())


def memory_for(loaded: LoadedModel, num_tokens: int) -> int:
    """Return just enough memory for one sequence of that length."""
    settings = Settings(memory_bytes=ROOMY)
    batched = find_sharing(loaded.model)
    budget = memory_budget.make_memory_budget(loaded, settings, batched, None, may_draft=False)
    return loaded.info.weight_bytes + budget.bytes_alone(num_tokens)


def memory_for_three(loaded: LoadedModel) -> int:
    """Return memory in which three rows of 180 tokens can start, but not all can grow to 260."""
    own = estimate.measure(loaded.model)
    if find_sharing(loaded.model):
        # Enough for two rows of 256 columns and the buffers of a third prompt; not for three of 512.
        windows = own.bytes_of(0, own.window_cells(180 + SLACK_TOKENS, 256))
        beside = 3 * own.fixed_bytes + 3 * windows
        return loaded.info.weight_bytes + 1400 * own.token_bytes + beside
    return loaded.info.weight_bytes + 3 * own.row_bytes(200 + 304, 256)


@pytest.mark.usefixtures("free_forwards")
@pytest.mark.parametrize(
    ("name", "is_drafting", "max_tokens"),
    [
        pytest.param("llama", False, 120, marks=pytest.mark.slow),
        ("llama", True, 120),
        ("lfm2", False, 120),
        pytest.param("qwen3_next", False, 120, marks=pytest.mark.slow),
        # Admission counts windows as they may become, steps as they are.
        pytest.param("gemma3_text", True, 400, marks=pytest.mark.slow),
    ],
)
def test_rows_that_outgrow_memory_get_the_same_tokens(name: str, is_drafting: bool, max_tokens: int) -> None:
    asked = [
        request(prompt_of(150 + 5 * i, i), name=str(i), max_tokens=max_tokens, temperature=0.9)
        for i in range(3)
    ]
    expected = {one.prompt: expected_tokens(name, one) for one in asked}
    loaded = make_loaded(name)
    sources = DraftSources({"suffix": Liar(expected, name="suffix")}, scored(1.0))
    driven = Driven(
        loaded,
        (lambda _: sources) if is_drafting else None,
        memory_bytes=memory_for_three(loaded),
        prefix_cache_bytes=0,
        num_draft_tokens=4,
    )
    answers = [driven.ask(one) for one in asked]
    driven.finish()
    assert driven.worker.stats.num_preemptions > 0
    assert [list(answer.finished().tokens) for answer in answers] == list(expected.values())


@pytest.mark.usefixtures("free_forwards")
def test_rows_with_masks_are_preempted_and_restart_with_the_same_tokens() -> None:
    loaded = foreseeing()
    asked = [
        request(prompt_of(150 + 5 * i, i), name=str(i), max_tokens=120, temperature=0.9) for i in range(3)
    ]
    driven = Driven(
        loaded,
        no_lookups,
        memory_bytes=memory_for_three(loaded),
        prefix_cache_bytes=0,
        num_draft_tokens=4,
        draft_type="wedlm",
    )
    answers = [driven.ask(one) for one in asked]
    driven.finish()
    assert driven.worker.stats.num_preemptions > 0
    assert [list(answer.finished().tokens) for answer in answers] == [oracle(loaded, one) for one in asked]


def test_mlx_never_takes_more_than_was_estimated() -> None:
    loaded = loaded_wide()
    needed = memory_for(loaded, 600) + 4 * 2**20
    before = mx.get_active_memory() - loaded.info.weight_bytes
    driven = Driven(loaded, memory_bytes=needed)
    mx.reset_peak_memory()
    for i in range(6):
        asked = request(prompt_of(40 + 70 * (i % 5), i), name=str(i), max_tokens=60, logit_bias=NEVER_END)
        driven.ask(asked)
    num_running = 0
    while driven.worker.has_work:
        driven.worker.step()
        num_running = max(num_running, len(driven.worker.members) + len(driven.worker.prefilling))
    assert all(len(answer.finished().tokens) == 60 for answer in driven.answers.values())
    assert 1 < num_running < 6
    assert mx.get_peak_memory() - before <= needed


@pytest.mark.usefixtures("free_forwards")
def test_cached_prefixes_are_dropped_before_any_row_is_preempted() -> None:
    loaded = loaded_wide()
    driven = Driven(loaded, memory_bytes=memory_for(loaded, 600), prefix_cache_bytes=2**28)
    for i in range(3):
        driven.ask(request(prompt_of(250, i), name=str(i), max_tokens=2))
    driven.finish()
    prefixes = driven.worker.queue.prefixes.cache
    assert prefixes is not None
    kept = prefixes.num_bytes
    assert kept > 0
    long = request(prompt_of(440, 9), name="long", max_tokens=60, temperature=0.9)
    driven.ask(long)
    driven.step_until(lambda: bool(driven.worker.members))
    held = prefixes.num_bytes
    assert held <= kept
    driven.step_until(lambda: driven.worker.members[0].num_answered > 50)
    assert prefixes.num_bytes < kept
    driven.finish()
    assert driven.worker.stats.num_preemptions == 0
    assert list(driven.answers["long"].finished().tokens) == oracle(loaded, long)


@pytest.mark.usefixtures("free_forwards")
def test_a_request_that_does_not_fit_is_overtaken_by_some_but_not_all() -> None:
    loaded = loaded_wide()
    driven = Driven(loaded, memory_bytes=memory_for(loaded, 600), prefix_cache_bytes=0, max_rows=4)
    driven.ask(short("first", 150))
    driven.step_until(lambda: bool(driven.worker.members))
    large = driven.ask(request(prompt_of(500, 1), name="large", max_tokens=20))
    for i in range(40):
        driven.ask(short(str(i), 4))
    driven.step_until(lambda: bool(large.events and large.events[-1].is_terminal))
    num_before = sum(bool(driven.answers[str(i)].events) for i in range(40))
    assert 16 <= num_before <= 20
    driven.finish()
    assert all(answer.finished() for answer in driven.answers.values())


def short(name: str, max_tokens: int) -> GenerationRequest:
    return request(prompt_of(9, len(name)), name=name, max_tokens=max_tokens, logit_bias=NEVER_END)


def test_a_short_request_finds_a_row_while_long_prompts_prefill() -> None:
    driven = Driven(make_loaded("llama"), prefill_chunk_tokens=16, max_rows=4, prefix_cache_bytes=0)
    for i in range(8):
        driven.ask(request(prompt_of(300, i), name=f"long {i}", max_tokens=2))
    driven.worker.step()
    hurried = driven.ask(short("hurried", 3))
    driven.step_until(lambda: bool(hurried.events))
    assert not any(driven.answers[f"long {i}"].events for i in range(8))
    driven.finish()
    assert all(answer.finished() for answer in driven.answers.values())


def test_a_long_prompt_gets_on_beside_a_stream_of_short_ones() -> None:
    driven = Driven(make_loaded("llama"), prefill_chunk_tokens=16, max_rows=4, prefix_cache_bytes=0)
    for i in range(4):
        driven.ask(short(f"before {i}", 4))
    long = driven.ask(request(prompt_of(300), name="long", max_tokens=2))
    num_asked = 0
    while not long.events:
        if len(driven.worker.queue.waiting) < 4:
            driven.ask(request(prompt_of(15, num_asked), name=str(num_asked), max_tokens=4))
            num_asked += 1
        driven.worker.step()
        assert num_asked < 500
    driven.finish()


@pytest.mark.usefixtures("free_forwards")
def test_the_context_is_what_memory_holds() -> None:
    loaded = loaded_wide()
    needed = memory_for(loaded, 512)
    driven = Driven(loaded, memory_bytes=needed)
    info = driven.loaded.info
    assert info.context_tokens == 512
    limit = info.memory_limit
    assert limit is not None
    assert limit.max_tokens == info.context_tokens
    assert limit.bytes_of(info.context_tokens) <= limit.room_bytes < limit.bytes_of(1024)
    fits = request(prompt_of(info.context_tokens - 40), name="fits", max_tokens=40, temperature=0.9)
    driven.ask(fits)
    driven.finish()
    assert list(driven.answers["fits"].finished().tokens) == oracle(loaded, fits)


def test_with_memory_enough_the_context_is_the_model_s_own() -> None:
    loaded = make_loaded("llama")
    memory_for(loaded, 1024)
    assert loaded.info.context_tokens == 1024
    assert loaded.info.memory_limit is None


def test_memory_that_holds_no_row_is_reported_before_the_first_request() -> None:
    loaded = make_loaded("llama")
    with pytest.raises(ModelError, match=r"no room for a row of llama.*takes [\d.]+ MiB"):
        memory_budget.make_memory_budget(
            loaded, Settings(memory_bytes=loaded.info.weight_bytes), Sharing.GROUPS, None
        )


@pytest.mark.usefixtures("free_forwards")
def test_a_context_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    loaded = loaded_wide()
    needed = memory_for(loaded, 512)
    with pytest.raises(ModelError, match=r"--max-context-tokens 1024 takes .* MiB.*hold \d+ tokens"):
        memory_budget.make_memory_budget(
            loaded, Settings(memory_bytes=needed, max_context_tokens=1024), Sharing.GROUPS, None
        )


@pytest.mark.usefixtures("free_forwards")
def test_a_recurrent_model_that_names_no_context_takes_longer_texts_than_others() -> None:
    model = make_model("mamba2")
    config = {key: value for key, value in CONFIGS["mamba2"].items() if key != "max_position_embeddings"}
    loaded = replace(
        make_loaded("mamba2"), model=model, info=describe(model, config, "m", VOCAB_SIZE, None, 0.0)
    )
    driven = Driven(loaded, prefix_cache_bytes=0)
    asked = request(prompt_of(5000), max_tokens=4, logit_bias=NEVER_END)
    answer = driven.ask(asked)
    driven.finish()
    assert list(answer.finished().tokens) == oracle(loaded, asked)
    assert driven.loaded.info.context_tokens == 131_072


@pytest.mark.usefixtures("free_sampling")
def test_a_lone_prompt_is_fed_in_larger_chunks_if_memory_is_left_over(monkeypatch) -> None:
    # So that memory alone limits the chunks, however long they take.
    monkeypatch.setattr(prefill_plan, "ALONE_S", 1e9)
    loaded = make_loaded("llama")
    fed: list[list[int]] = []
    for memory_bytes in (memory_for(loaded, 900), ROOMY):
        driven = Driven(loaded, memory_bytes=memory_bytes, prefix_cache_bytes=0, prefill_chunk_tokens=512)
        driven.ask(request(prompt_of(890), 4))
        lengths = [0]
        while not driven.worker.members:
            driven.worker.step()
            lengths += [s.prefill.num_computed for s in driven.worker.prefilling]
        fed.append([after - before for before, after in pairwise(lengths)])
    tight, roomy = fed
    assert roomy[0] == 512
    # The longer the part that is computed, the less is left over.
    assert 512 > tight[0] > tight[1] > 200


@pytest.mark.usefixtures("free_forwards")
def test_a_prompt_s_windows_count_as_large_as_its_widest_chunk_made_them() -> None:
    changes = {"sliding_window": 64, "sliding_window_pattern": 4, "num_hidden_layers": 8}
    loaded = replace(make_loaded("gemma3_text"), model=make_model("gemma3_text", **changes))
    loaded = replace(loaded, info=replace(loaded.info, context_tokens=4096))
    driven = Driven(loaded, memory_bytes=ROOMY, prefix_cache_bytes=0, prefill_chunk_tokens=512)
    driven.ask(request(prompt_of(2060), max_tokens=2, logit_bias=NEVER_END))
    held = []
    while not driven.worker.members:
        driven.worker.step()
        if prefilling := driven.worker.prefilling:
            mx.synchronize()
            own = leaves(prefilling[0].prefill.caches)
            held.append(sum(array.nbytes for leaf in own for array in arrays_of(leaf)))
            driven.worker._make_room()
            assert driven.worker.queue.memory_budget.used_bytes >= held[-1]
    assert held
