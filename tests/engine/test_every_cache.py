"""Whatever happens to a batch, every kind of cache gives the tokens of a sequence alone.

More rows than fit join and leave, some share prefixes that are cached, some are cancelled or preempted. Their
drafts come from an oracle, a liar and a coin, and many answers outgrow the sliding windows of 16 tokens. Some
runs also have quantized keys, an adapter, thinking budgets, a DFlash head, or rows that fill in masks.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import GenerationRequest, Grammar, ThinkingBudget
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.loading import LoadedModel, LoadOptions, load_model
from reprise.engine.pool.residency import FindHead
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.vision.keys import prompt_keys
from tests.combinations import FAMILIES, every_kind_of_cache
from tests.drafters.fakes import Coin, scored
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.model_folders import write_adapter, write_model
from tests.engine.speculative.heads.test_drafting_by_heads import (
    random_assistant,
    random_dflash,
    random_eagle,
    random_mtp,
    random_of_kind,
)
from tests.engine.support import CONFIGS, VOCAB_SIZE, make_loaded, prompt_of, request
from tests.engine.windows import make_window_model, windowed

CHANCES = (1.0, 0.0, 0.7)
NUM_REQUESTS = 12

Tell = Callable[[GenerationRequest], list[int]]
"""Returns the tokens of a request's answer."""
Change = Callable[[int, GenerationRequest], GenerationRequest]
"""Makes another request of one, and of its number."""
QUANTIZED = {"llama": 8, "gemma3_text": 4, "qwen3_next": 4}


class Mixed(Coin):
    """An oracle for some sequences, a liar for others, and a coin for all others.

    leaves_some: whether it has nothing for some sequences, so that others draft for them.
    """

    leaves_some = False

    def propose(self, query: DraftQuery) -> Draft:
        if self.leaves_some and query.seq % 4 == 0:
            return NO_DRAFT
        self.chance = CHANCES[query.seq % len(CHANCES)]
        return super().propose(query)


def make_requests() -> list[GenerationRequest]:
    rng = random.Random(3)
    asked = []
    for number in range(NUM_REQUESTS):
        # Every third prompt begins like the one three before it.
        shared = prompt_of(30, number % 3)[: rng.randint(0, 30)]
        prompt = [*shared, *prompt_of(rng.randint(1, 40), 10 + number)]
        sampling = {"temperature": 0.9 * (number % 2), "seed": number}
        asked.append(request(prompt, rng.randint(4, 30), name=str(number), **sampling))
    return asked


def keys_of(asked: GenerationRequest) -> tuple[int, ...]:
    """The prompt as drafters read it."""
    return tuple(prompt_keys(asked.prompt, asked.images, VOCAB_SIZE))


END = (7, 9)
"""Tokens that end a thought."""


def unchanged(_: int, asked: GenerationRequest) -> GenerationRequest:
    return asked


def with_budgets(number: int, asked: GenerationRequest) -> GenerationRequest:
    """Let two of three think for a few tokens at most."""
    if number % 3 == 0:
        return asked
    budget = ThinkingBudget(2 + number, (), END, is_open=True)
    return replace(asked, grammar=Grammar("any", "", thinking=budget, compiled="any"))


def with_masks(number: int, asked: GenerationRequest) -> GenerationRequest:
    """Let every third fill in masks, and a third think for a few tokens at most."""
    return windowed(asked, entropy_threshold=7.0) if number % 3 == 2 else with_budgets(number, asked)


def check_all(
    loaded: LoadedModel,
    tell: Tell,
    change: Change = unchanged,
    find_head: FindHead | None = None,
    **settings: Any,
) -> dict[str, Finished]:
    """Run all requests, cancel two, continue two others, and compare the answers with the expected ones.

    Returns the ends of those that were not cancelled, by id.
    """
    rng = random.Random(5)
    asked = [change(number, one) for number, one in enumerate(make_requests())]
    for one in asked[:2]:
        prompt = [*one.prompt, *tell(one), *prompt_of(5, 40)]
        asked.append(replace(one, id=f"after {one.id}", prompt=tuple(prompt)))
    drafter = Mixed({keys_of(one): tell(one) for one in asked}, 0.0, num_ids=4096, name="suffix")
    drafter.leaves_some = find_head is not None
    driven = Driven(
        replace(loaded),
        lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        find_head=find_head,
        max_rows=8,
        num_draft_tokens=5,
        prefill_chunk_tokens=16,
        prefix_cache_bytes=2**22,
        gate="off",
        **{"draft_type": "suffix"} | settings,
    )
    worker, cancelled = driven.worker, {"5", "8"}

    def cancel_some() -> bool:
        """Cancel two requests after their first tokens; return whether no work is left."""
        for name in [s.request.id for s in worker.members if s.request.id in cancelled and s.num_answered]:
            worker.cancel(name)
        return not worker.has_work

    for one in asked:
        if one.id.startswith("after"):
            driven.step_until(cancel_some)
        driven.ask(one)
        if rng.random() < 0.6:
            worker.step()
    driven.finish()
    ended = {one.id: driven.answers[one.id].end() for one in asked}
    for one in asked:
        end = ended[one.id]
        assert one.id in cancelled or isinstance(end, Finished)
        assert not isinstance(end, Finished) or list(end.tokens) == tell(one)
    finished = {name: end for name, end in ended.items() if isinstance(end, Finished)}
    usages = [end.usage for end in finished.values()]
    assert len(usages) < len(asked)
    assert sum(usage.drafting.num_accepted for usage in usages) > 30
    assert all(usage.num_cached_tokens > 0 for usage in usages[-2:])
    assert worker.stats.num_preemptions > 0
    return finished


@pytest.fixture(autouse=True)
def scarce_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then the next step does not fit, so that the youngest sequence is preempted."""
    rng, fits = random.Random(7), MemoryBudget.make_room
    monkeypatch.setattr(
        MemoryBudget, "make_room", lambda self, *rest: fits(self, *rest) and rng.random() > 0.1
    )


@pytest.mark.parametrize("name", every_kind_of_cache(CONFIGS, 0, of=2))
def test_a_batch_that_changes_all_the_time_equals_the_plain_loop(name: str) -> None:
    check_all(loaded_once(name), lambda one: expected_tokens(name, replace(one, id="r")))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in CONFIGS])
def test_a_batch_of_any_family_that_changes_all_the_time_equals_the_plain_loop(name: str) -> None:
    check_all(loaded_once(name), lambda one: expected_tokens(name, replace(one, id="r")))


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_batch_over_quantized_keys_equals_sequences_alone(name: str) -> None:
    loaded = make_loaded(name)
    settings = {"kv_bits": QUANTIZED[name]}
    check_all(loaded, alone(loaded, **settings), **settings)


def alone(loaded: LoadedModel, **settings: Any) -> Tell:
    """Answer requests one by one, without drafts and without a prefix cache."""
    driven = Driven(replace(loaded), max_rows=1, prefix_cache_bytes=0, draft_type="none", **settings)

    @functools.cache
    def tell(one: GenerationRequest) -> list[int]:
        answer = driven.ask(one)
        driven.finish()
        return list(answer.finished().tokens)

    return tell


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kv_bits", [pytest.param(None, marks=SLOW), 8])
def test_a_batch_with_an_adapter_and_budgets_equals_sequences_alone(
    kv_bits: int | None, tmp_path: Path
) -> None:
    base = write_model(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    loaded = load_model(str(base), "base", None, options=LoadOptions(adapter=str(adapter)))
    ends = check_all(loaded, alone(loaded, kv_bits=kv_bits), with_budgets, kv_bits=kv_bits)
    assert any(pair == END for end in ends.values() for pair in pairwise(end.tokens))


@pytest.mark.parametrize(
    ("name", "head", "kv_bits"),
    [
        ("gemma3_text", random_dflash(None, 12), None),
        ("llama", random_eagle(), 8),
        ("gemma4_text", random_assistant, None),
        pytest.param("lfm2", random_dflash(None, 12), None, marks=SLOW),
        pytest.param("qwen3_next", random_of_kind("DSpark"), None, marks=SLOW),
        pytest.param("gemma3_text", random_of_kind("DFlash 2"), 4, marks=SLOW),
        pytest.param("glm_moe_dsa", random_mtp("glm_moe_dsa"), None, marks=SLOW),
    ],
    ids=["DFlash", "EAGLE-3", "assistant", "recurrent", "DSpark", "DFlash 2", "MTP"],
)
def test_a_batch_with_a_head_and_budgets_equals_sequences_alone(
    name: str, head: FindHead, kv_bits: int | None
) -> None:
    loaded = make_loaded(name)
    told = alone(loaded, kv_bits=kv_bits)
    ends = check_all(loaded, told, with_budgets, head, draft_type="auto", kv_bits=kv_bits)
    drafted = [source for end in ends.values() for source, *_ in end.usage.drafting.by_source]
    found = head(loaded)
    assert {found and found.source, "suffix"} <= set(drafted)


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=SLOW) for name in ("qwen2", "qwen3"))]
)
def test_a_batch_with_rows_that_fill_in_masks_and_budgets_equals_sequences_alone(family: str) -> None:
    loaded = make_window_model(family)
    ends = check_all(loaded, alone(loaded), with_masks, draft_type="auto")
    filled = [end for name, end in ends.items() if name.isdigit() and int(name) % 3 == 2]
    assert any(end.usage.drafting.num_forwards < len(end.tokens) for end in filled)
