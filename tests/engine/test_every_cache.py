"""Whatever happens to a batch, every kind of cache gives the tokens of a sequence alone.

More rows than fit join and leave, some share prefixes that are cached, some are cancelled or preempted. Their
drafts come from an oracle, a liar and a coin, and many answers outgrow the sliding windows of 16 tokens.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drafters.base import Draft, DraftQuery
from engine.model.loading import LoadedModel
from engine.request import Finished, GenerationRequest
from engine.scheduler.memory_budget import MemoryBudget
from engine.speculative.proposers import DraftSources
from tests.combinations import FAMILIES, every_kind_of_cache
from tests.drafters.fakes import Coin, scored
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.support import CONFIGS, make_loaded, prompt_of, request

CHANCES = (1.0, 0.0, 0.7)
NUM_REQUESTS = 12

Tell = Callable[[GenerationRequest], list[int]]
"""Returns the tokens of a request's answer."""
QUANTIZED = {"llama": 8, "gemma3_text": 4, "qwen3_next": 4}


class Mixed(Coin):
    """An oracle for some sequences, a liar for others, and a coin for all others."""

    def propose(self, query: DraftQuery) -> Draft:
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


def check_all(loaded: LoadedModel, tell: Tell, **settings: Any) -> None:
    """Run all requests, cancel two, continue two others, and compare the answers with the expected ones."""
    rng = random.Random(5)
    asked = make_requests()
    for one in asked[:2]:
        prompt = [*one.prompt, *tell(one), *prompt_of(5, 40)]
        asked.append(replace(one, id=f"after {one.id}", prompt=tuple(prompt)))
    drafter = Mixed({one.prompt: tell(one) for one in asked}, 0.0, num_ids=4096, name="suffix")
    driven = Driven(
        replace(loaded),
        lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        max_rows=8,
        num_draft_tokens=5,
        prefill_chunk_tokens=16,
        prefix_cache_bytes=2**22,
        draft_type="suffix",
        gate="off",
        **settings,
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
    usages = [end.usage for end in ended.values() if isinstance(end, Finished)]
    assert len(usages) < len(asked)
    assert sum(usage.drafting.num_accepted for usage in usages) > 30
    assert all(usage.num_cached_tokens > 0 for usage in usages[-2:])
    assert worker.stats.num_preemptions > 0


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
    alone = Driven(replace(loaded), max_rows=1, prefix_cache_bytes=0, **settings)

    @functools.cache
    def tell(one: GenerationRequest) -> list[int]:
        answer = alone.ask(one)
        alone.finish()
        return list(answer.finished().tokens)

    check_all(loaded, tell, **settings)
