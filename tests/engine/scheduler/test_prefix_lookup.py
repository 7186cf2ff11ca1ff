"""The prefix that a prompt shares with another one is exactly the one that comparing all tokens finds."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.kv_cache.buffers import KVSlice, State, rebuild
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.kv_cache.probes import find_sharing
from reprise.engine.memory.budget import make_memory_budget
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.scheduler import prefixes
from reprise.engine.scheduler.prefixes import Prefixes
from tests.engine.driven import loaded_once
from tests.engine.support import Answer, make_tokenizer, request

PROMPTS = st.lists(st.integers(5, 6), min_size=1, max_size=20)
MIN_SHARED = 2


@functools.cache
def lookup_of(name: str) -> Prefixes:
    loaded, settings = replace(loaded_once(name)), Settings(prefix_cache_bytes=2**20, memory_bytes=2**40)
    budget = make_memory_budget(loaded, settings, find_sharing(loaded.model), None)
    return Prefixes(loaded, settings, 2**20, budget)


@functools.cache
def grammars() -> Grammars:
    return Grammars(make_tokenizer())


def sequence_of(prompt: list[int]) -> Sequence:
    return Sequence.of(request(prompt), Answer(), make_tokenizer(), grammars())


def slice_of(tokens: list[int], mark: int = 0) -> KVSlice:
    """Make keys that are the tokens, and values that are the mark, for both layers of llama."""
    keys = mx.array(tokens, mx.float32).reshape(1, 1, -1, 1)
    return [keys, mx.full(keys.shape, mark, mx.float32)] * 2


def shared_by_brute_force(tokens: list[int], others: list[int]) -> int:
    """Count the leading tokens that are equal; the last of tokens never counts."""
    count = 0
    while count < min(len(tokens) - 1, len(others)) and tokens[count] == others[count]:
        count += 1
    return count


@dataclass
class BruteForce:
    """What a waiting sequence should wait for, found by comparing all tokens at every change."""

    waiting: Sequence
    compared: list[Sequence] = field(default_factory=list)
    awaited: tuple[Sequence, int] | None = None

    def awaits(self, prefilling: list[Sequence], cache: PrefixCache) -> bool:
        if self.awaited and self.awaited[0] not in prefilling:
            self.awaited, self.compared = None, []
        if self.awaited is None and self.compared != prefilling:
            self.compared = list(prefilling)
            held = cache.match(self.waiting.tokens)
            for other in prefilling:
                shared = shared_by_brute_force(self.waiting.tokens, other.tokens)
                if shared >= held + MIN_SHARED and other.prefill.num_computed < shared:
                    held, self.awaited = shared, (other, shared)
        if self.awaited is None:
            return False
        other, shared = self.awaited
        return other in prefilling and not other.ended and other.prefill.num_computed < shared


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
@settings(deadline=None)
@given(data=st.data(), first_compared=st.integers(1, 5))
def test_a_prompt_waits_for_the_one_that_comparing_all_tokens_finds(
    name: str, data: st.DataObject, first_compared: int
) -> None:
    """Let any prompts prefill, leave, come back with more tokens, be cached and be evicted."""
    lookup, needs_state = lookup_of(name), name == "qwen3_next"
    state: State = [mx.zeros(1)] if needs_state else []
    cache = PrefixCache(2**20, list, needs_state)
    running = [sequence_of(prompt) for prompt in data.draw(st.lists(PROMPTS, min_size=1, max_size=4))]
    expected = [BruteForce(sequence_of(p)) for p in data.draw(st.lists(PROMPTS, min_size=1, max_size=4))]
    keep_at: dict[Sequence, set[int]] = {other: set() for other in running}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_SHARED_TOKENS", MIN_SHARED)
        patch.setattr(prefixes, "FIRST_COMPARED_TOKENS", first_compared)
        patch.setattr(lookup, "cache", cache)
        for _ in range(data.draw(st.integers(1, 8))):
            if data.draw(st.booleans()):
                tokens = data.draw(PROMPTS)
                cache.put(tokens, lambda start, end, of=tokens: slice_of(of[start:end]), state)
            if data.draw(st.booleans()):
                cache.shrink_to(data.draw(st.integers(0, cache.num_bytes)))
            for other in running:
                more = data.draw(st.integers(0, 3))
                other.prefill.num_computed = min(other.prefill.num_computed + more, len(other.tokens) - 1)
            prefilling = data.draw(st.permutations(running))[: data.draw(st.integers(0, len(running)))]
            for other in running:
                # It was running, and was preempted after it had committed more tokens.
                if other not in prefilling and data.draw(st.booleans()):
                    other.tokens.extend(data.draw(PROMPTS))
                    other.prefill.num_computed = 0
            for one in expected:
                # The worker does not look at every waiting sequence at every step.
                if data.draw(st.integers(0, 3)):
                    before = one.awaited
                    assert one.awaits(prefilling, cache) == lookup.awaits(one.waiting, prefilling)
                    assert one.waiting.prefix.awaited == one.awaited
                    if needs_state and one.awaited and one.awaited != before:
                        keep_at[one.awaited[0]].add(one.awaited[1])
        assert all(other.prefill.keep_at == lengths for other, lengths in keep_at.items())


@dataclass
class FakeRows:
    """Rows that hold the first of their sequences' tokens, marked with their own numbers."""

    texts: list[list[int]]
    lengths: list[int]

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        return slice_of(self.texts[row][start:end], row)


@settings(deadline=None)
@given(
    prompt=PROMPTS,
    members=st.lists(st.tuples(PROMPTS, PROMPTS, st.integers(0, 25)), max_size=3),
    prompts=st.lists(st.tuples(PROMPTS, st.integers(0, 20)), max_size=3),
    first_compared=st.integers(1, 5),
)
def test_the_longest_prefix_of_a_running_sequence_is_borrowed(
    prompt: list[int],
    members: list[tuple[list[int], list[int], int]],
    prompts: list[tuple[list[int], int]],
    first_compared: int,
) -> None:
    """Commit answers after the first lookup: their tokens count at the next one."""
    lookup, model = lookup_of("llama"), loaded_once("llama").model
    decoding = [sequence_of(asked) for asked, _, _ in members]
    rows: Any = FakeRows([s.tokens for s in decoding], [0] * len(members))
    prefilling = [sequence_of(asked) for asked, _ in prompts]
    for mark, (other, (_, num)) in enumerate(zip(prefilling, prompts, strict=True), start=len(members)):
        other.prefill.num_computed = held = min(num, len(other.tokens) - 1)
        kv_slice = slice_of(other.tokens[:held], mark)
        other.prefill.caches = rebuild(make_caches(model), [kv_slice], [], held)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_SHARED_TOKENS", MIN_SHARED)
        patch.setattr(prefixes, "FIRST_COMPARED_TOKENS", first_compared)
        patch.setattr(lookup, "cache", None)
        for is_answered in (False, True):
            for row, (_, answer, num) in enumerate(members):
                decoding[row].tokens.extend(answer if is_answered else [])
                rows.lengths[row] = min(num, len(decoding[row].tokens))
            holders = [(s.tokens, held) for s, held in zip(decoding, rows.lengths, strict=True)]
            holders += [(s.tokens, s.prefill.num_computed) for s in prefilling]
            lengths = [min(shared_by_brute_force(prompt, text), held) for text, held in holders]
            longest = max(lengths, default=0)
            caches, length = lookup.find(sequence_of(prompt), decoding, rows, prefilling)
            assert length == longest
            if longest:
                assert caches[0].keys.flatten().tolist() == prompt[:longest]
                assert caches[1].values.flatten().tolist() == [lengths.index(longest)] * longest
