"""The prefix cache holds what it says, within its bytes."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from engine.drafting import DraftSources
from engine.prefix_cache import PrefixCache
from engine.rows import Caches
from tests.engine.conftest import StartEngine
from tests.engine.support import ask, make_loaded, oracle, prompt_of, request

BYTES_PER_TOKEN = 2 * 4 * 4


def caches_of(tokens: list[int]) -> Caches:
    """One layer whose keys are the tokens themselves."""
    cache = KVCache()
    keys = mx.broadcast_to(mx.array(tokens, mx.float32)[None, None, :, None], (1, 1, len(tokens), 4))
    cache.keys, cache.values, cache.offset = mx.contiguous(keys), mx.contiguous(keys), len(tokens)
    return [cache]


def test_the_longest_common_beginning_is_found() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2, 3, 4], caches_of([1, 2, 3, 4]))
    cache.put([1, 2, 9], caches_of([1, 2, 9]))
    found = cache.find([1, 2, 3, 7])
    assert found is not None
    caches, length = found
    assert length == 3
    assert caches[0].keys[0, 0, :, 0].tolist() == [1, 2, 3]
    assert cache.find([8, 1, 2]) is None


def test_the_last_token_of_a_prompt_is_left_to_compute() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2, 3], caches_of([1, 2, 3]))
    assert cache.find([1, 2, 3])[1] == 2  # type: ignore[index]
    assert cache.find([1]) is None


def test_the_least_recently_used_goes_first_and_bytes_are_counted() -> None:
    cache = PrefixCache(8 * BYTES_PER_TOKEN)
    cache.put([1, 1, 1], caches_of([1, 1, 1]))
    cache.put([2, 2, 2], caches_of([2, 2, 2]))
    cache.find([1, 1, 1, 5])
    cache.put([3, 3, 3], caches_of([3, 3, 3]))
    assert cache.num_bytes == 6 * BYTES_PER_TOKEN
    assert cache.find([2, 2, 2, 5]) is None
    assert cache.find([1, 1, 1, 5]) is not None
    cache.put([4] * 9, caches_of([4] * 9))
    assert len(cache) == 2


def test_an_entry_that_another_extends_is_dropped() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2], caches_of([1, 2]))
    cache.put([1, 2, 3], caches_of([1, 2, 3]))
    assert len(cache) == 1
    assert cache.num_bytes == 3 * BYTES_PER_TOKEN
    cache.put([1, 2], caches_of([1, 2]))
    assert len(cache) == 1


def test_what_a_row_writes_later_does_not_reach_the_cache() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2, 3], caches_of([1, 2, 3]))
    caches, _ = cache.find([1, 2, 3, 4])  # type: ignore[misc]
    caches[0].update_and_fetch(mx.full((1, 1, 1, 4), 99.0), mx.full((1, 1, 1, 4), 99.0))
    caches, _ = cache.find([1, 2, 3, 4])  # type: ignore[misc]
    assert caches[0].keys[0, 0, :, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("prefix_cache_bytes", [0, 10**8])
@pytest.mark.parametrize("with_drafts", [False, True])
def test_choices_of_one_prompt_share_its_prefill(
    prefix_cache_bytes: int, with_drafts: bool, start_engine: StartEngine
) -> None:
    """Six sequences with one prompt, and one with another that need not wait for them."""
    prompt = prompt_of(200)
    fed: list[int] = []

    class Counting:
        def __init__(self, model: Any) -> None:
            self.model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            if tokens.shape[1] > 8:
                fed.append(tokens.shape[1])
            return self.model(tokens, cache=cache)

    engine = start_engine(
        "llama",
        wrap=Counting,
        make_sources=(lambda _: DraftSources({}, lambda _: 0.0)) if with_drafts else None,
        load_draft=(lambda _: make_loaded("llama")) if with_drafts else None,
        draft_model="the one that load_draft makes" if with_drafts else None,
        num_draft_tokens=4,
        prefix_cache_bytes=prefix_cache_bytes,
        prefill_chunk_tokens=64,
    )
    fed.clear()
    asked = [request(prompt, 20, name=str(i), temperature=0.8, seed=i) for i in range(6)]
    asked.append(request(prompt_of(60, 1), 20, name="other"))
    answers = [ask(engine, one) for one in asked]
    loaded = make_loaded("llama")
    assert [list(answer.finished().tokens) for answer in answers] == [oracle(loaded, one) for one in asked]
    assert sum(fed) < 2 * len(prompt)
