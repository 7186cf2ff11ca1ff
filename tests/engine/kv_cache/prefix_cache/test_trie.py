"""What was computed once is not computed again, within a budget of bytes, and no token changes."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache

from reprise.engine.interface.events import Usage
from reprise.engine.kv_cache.buffers import KVSlice, State, sub_slice
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.kv_cache.probes import prefix_fault
from reprise.engine.speculative.proposers import DraftSources
from tests.combinations import every_kind_of_cache
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven
from tests.engine.support import (
    CONFIGS,
    Answer,
    ask,
    make_loaded,
    make_model,
    oracle,
    prompt_of,
    request,
)

BYTES_PER_TOKEN = 2 * 4 * 4
STATE_BYTES = 4


def make_empty() -> Caches:
    """Make caches for a layer with keys and values, and one with recurrent state."""
    return [KVCache(), ArraysCache(1)]


def slice_of(tokens: Sequence[int]) -> KVSlice:
    """Make keys and values that are the tokens themselves."""
    one = mx.broadcast_to(mx.array(tokens, mx.float32)[None, None, :, None], (1, 1, len(tokens), 4))
    return [mx.contiguous(one), mx.contiguous(one)]


def state_of(tokens: Sequence[int]) -> State:
    """Make state that is the sum of the tokens."""
    return [mx.array(sum(tokens), mx.int32)]


class CheckedCache:
    """A prefix cache that checks everything it finds."""

    def __init__(self, budget_bytes: int = 10**6, needs_state: bool = False) -> None:
        empty = make_empty if needs_state else lambda: [KVCache()]
        self.cache = PrefixCache(budget_bytes, empty, needs_state)

    def put(self, *tokens: int) -> None:
        state = state_of(tokens) if self.cache.needs_state else []
        self.cache.put(tokens, lambda start, end: slice_of(tokens[start:end]), state)

    def find(self, *prompt: int) -> int:
        """Find the longest prefix, check it, and return its number of tokens."""
        found = self.cache.find(prompt)
        if found is None:
            return 0
        caches, length = found
        assert caches[0].offset == length
        assert caches[0].keys[0, 0, :, 0].tolist() == list(prompt[:length])
        assert caches[0].values[0, 0, :, 3].tolist() == list(prompt[:length])
        if self.cache.needs_state:
            assert caches[1].cache[0].item() == sum(prompt[:length])
        return length


def test_the_longest_common_prefix_is_found() -> None:
    held = CheckedCache()
    held.put(1, 2, 3, 4)
    held.put(1, 2, 9)
    assert held.find(1, 2, 3, 7) == 3
    assert held.find(1, 2, 3, 4, 5) == 4
    assert held.find(1, 2, 9, 9, 9) == 3
    assert held.find(8, 1, 2) == 0
    status = held.cache.status()
    assert (status.hits, status.misses) == (3, 1)


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    held = CheckedCache()
    held.put(1, 2, 3)
    assert held.find(1, 2, 3) == 2
    assert held.find(1) == 0


def test_a_shared_prefix_is_stored_once() -> None:
    held = CheckedCache()
    held.put(*range(1, 101), 200)
    held.put(*range(1, 101), 300, 301)
    assert held.cache.num_bytes == 103 * BYTES_PER_TOKEN
    held.put(*range(1, 51))
    assert held.cache.num_bytes == 103 * BYTES_PER_TOKEN
    assert held.find(*range(1, 101), 300, 301, 5) == 102


def test_state_can_be_used_only_at_the_length_where_it_was_taken() -> None:
    held = CheckedCache(needs_state=True)
    held.put(1, 2, 3, 4)
    assert held.find(1, 2, 3, 9) == 0
    assert held.cache.match((1, 2, 3, 9)) == 3
    held.put(1, 2)
    assert held.find(1, 2, 3, 9) == 2
    assert held.find(1, 2, 3, 4, 9) == 4
    assert held.cache.num_bytes == 4 * BYTES_PER_TOKEN + 2 * STATE_BYTES


def test_the_least_recently_used_is_dropped_first_and_bytes_are_counted() -> None:
    held = CheckedCache(8 * BYTES_PER_TOKEN)
    held.put(1, 1, 1)
    held.put(2, 2, 2)
    held.find(1, 1, 1, 5)
    held.put(3, 3, 3)
    assert held.cache.num_bytes == 6 * BYTES_PER_TOKEN
    assert held.find(2, 2, 2, 5) == 0
    assert held.find(1, 1, 1, 5) == 3
    held.put(*[4] * 9)
    assert held.find(1, 1, 1, 5) == 3
    assert held.cache.status().evictions == 1


def lengths_left(num_states: int, *lengths: int, weights: Sequence[float] = ()) -> list[int]:
    """Keep large states of one text at these lengths, in memory for so many; return those that stay."""
    tokens, size = list(range(1, max(lengths) + 2)), 2000
    cache = PrefixCache(num_states * 4 * size + len(tokens) * BYTES_PER_TOKEN, make_empty, True)
    for length, weight in zip(lengths, weights or [1.0] * len(lengths), strict=True):
        cache.put(tokens[:length], lambda start, end: slice_of(tokens[start:end]), [mx.zeros(size)], weight)
    return [length for length in lengths if cache.state_at(tokens[:length])]


def test_the_state_that_saves_fewest_tokens_for_its_bytes_is_dropped_first() -> None:
    assert lengths_left(2, 20, 22, 30) == [20, 30]
    # Of a ladder every other one goes, and not one end of it.
    assert lengths_left(3, 40, 50, 60, 70, 100) == [40, 60, 100]


def test_state_within_a_message_is_dropped_before_that_where_one_begins() -> None:
    assert lengths_left(2, 10, 20, 30) == [20, 30]
    assert lengths_left(2, 10, 20, 30, weights=[1.0, 0.25, 1.0]) == [10, 30]


def test_what_is_not_used_for_long_is_dropped_though_it_saves_more() -> None:
    held = CheckedCache(20 * BYTES_PER_TOKEN, needs_state=True)
    held.put(*[1] * 9)
    for start in range(2, 30):
        held.put(*[start] * 5)
        held.put(*[start] * 5)
    assert held.find(*[1] * 9, 99) == 0
    assert held.find(*[29] * 5, 99) == 5


def test_a_prefix_that_exceeds_the_budget_as_a_whole_is_not_stored() -> None:
    held = CheckedCache(8 * BYTES_PER_TOKEN)
    held.put(1, 1, 1, 1, 1)
    held.put(1, 1, 1, 1, 1, 2, 2, 2, 2)
    assert held.find(1, 1, 1, 1, 1, 2, 2) == 5


@pytest.mark.parametrize("needs_state", [False, True])
def test_nothing_wrong_is_found_after_any_puts_and_drops(needs_state: bool) -> None:
    """Use three different tokens, so that prefixes branch a lot, and compare with a plain list."""
    rng = random.Random(5)
    held, put = CheckedCache(60 * BYTES_PER_TOKEN, needs_state), []
    for _ in range(3000):
        tokens = tuple(rng.randrange(3) for _ in range(rng.randint(1, 12)))
        if rng.random() < 0.5:
            held.put(*tokens)
            put.append(tokens)
        else:
            length = held.find(*tokens)
            kept = [one for one in put if one[:length] == tokens[:length]]
            assert length == 0 or (kept and (not needs_state or tokens[:length] in put))
            assert length < len(tokens)
        assert held.cache.num_bytes <= held.cache.budget_bytes
    assert held.cache.status().evictions > 100
    held.cache.shrink_to(0)
    status = held.cache.status()
    assert (status.num_bytes, status.num_entries) == (0, 0)
    assert held.cache._num_arrays == 0


def test_within_the_budget_the_longest_stored_prefix_is_found() -> None:
    rng = random.Random(6)
    for needs_state in (False, True):
        held = CheckedCache(needs_state=needs_state)
        put: list[tuple[int, ...]] = [()]
        for _ in range(500):
            tokens = tuple(rng.randrange(3) for _ in range(rng.randint(1, 12)))
            wanted = tokens[:-1]
            ends = {one[:end] for one in put for end in ([len(one)] if needs_state else range(len(one) + 1))}
            expected = max(n for n in range(len(tokens)) if wanted[:n] in ends)
            assert held.find(*tokens) == expected
            held.put(*tokens)
            put.append(tokens)


def test_later_writes_of_a_row_do_not_reach_the_cache() -> None:
    held = CheckedCache()
    held.put(1, 2, 3)
    caches, _ = held.cache.find([1, 2, 3, 4])  # type: ignore[misc]
    caches[0].update_and_fetch(mx.full((1, 1, 1, 4), 99.0), mx.full((1, 1, 1, 4), 99.0))
    assert held.find(1, 2, 3, 4) == 3


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_can_be_split_and_rebuilt(name: str) -> None:
    assert prefix_fault(make_model(name)) is None


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text"])
@pytest.mark.parametrize("kv_bits", [4, 8])
def test_quantized_keys_can_be_split_and_rebuilt(name: str, kv_bits: int) -> None:
    assert prefix_fault(make_model(name), kv_bits) is None


def test_a_cache_that_cannot_be_rebuilt_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.engine.kv_cache.probes.take_state", lambda _: [None] * 9)
    assert "cannot be split and rebuilt" in str(prefix_fault(make_model("gemma3_text")))


class Chat:
    """Requests of one engine, each compared with the plain loop."""

    def __init__(self, start_engine: StartEngine, name: str) -> None:
        self.engine = start_engine(name, prefill_chunk_tokens=48)
        self.loaded = make_loaded(name)

    def say(self, prompt: Sequence[int], seed: int, max_tokens: int = 16) -> tuple[list[int], Usage]:
        """Send a prompt; return the answer's tokens and its usage."""
        asked = request(prompt, max_tokens, name=f"{seed}", temperature=0.7 * (seed % 2), seed=seed)
        finished = ask(self.engine, asked).finished()
        assert list(finished.tokens) == oracle(self.loaded, asked)
        return list(finished.tokens), finished.usage


@pytest.mark.parametrize("name", every_kind_of_cache(CONFIGS, 0, of=3))
def test_a_conversation_computes_only_its_new_tokens(name: str, start_engine: StartEngine) -> None:
    """Send four turns with the whole history: only the new tokens, and one more, are computed."""
    chat = Chat(start_engine, name)
    history, held = prompt_of(150), 0
    for turn in range(4):
        answer, usage = chat.say(history, seed=turn)
        # The answer's last token may not have been fed to the model.
        assert held - 1 <= usage.num_cached_tokens <= held
        held = len(history) + len(answer)
        history = [*history, *answer, *prompt_of(20, turn + 1)]


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text"])
def test_quantized_keys_are_cached_too(name: str, start_engine: StartEngine) -> None:
    warm, cold = (start_engine(name, kv_bits=8, prefix_cache_bytes=num_bytes) for num_bytes in (10**8, 0))
    history = prompt_of(90)
    for turn in range(3):
        answers = [ask(engine, request(history, 24)).finished() for engine in (warm, cold)]
        assert answers[0].tokens == answers[1].tokens
        assert answers[0].usage.num_cached_tokens >= (len(history) - 21 if turn else 0)
        history = [*history, *answers[0].tokens, *prompt_of(20, turn + 1)]


@pytest.mark.parametrize("name", every_kind_of_cache(CONFIGS, 1, of=3))
def test_a_history_without_its_reasoning_is_cached_up_to_the_answer(
    name: str, start_engine: StartEngine
) -> None:
    """Leave out the start of the earlier answer in the next turn, as templates do with reasoning."""
    chat = Chat(start_engine, name)
    opening = list(chat.loaded.tokenizer.openings.answer)
    asked = prompt_of(100)
    answer, _ = chat.say([*asked, *opening, 77], seed=1)
    _, usage = chat.say([*asked, *opening, 88, *answer[10:], *prompt_of(9, 3), *opening, 77], seed=2)
    assert usage.num_cached_tokens in (len(asked), len(asked) + len(opening))


@pytest.mark.parametrize(("name", "is_cut"), [("gemma3_text", False), ("gpt_oss", False), ("lfm2", True)])
def test_a_prompt_is_cut_at_the_answers_opening_only_if_state_cannot_look_back(
    name: str, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven, fed = Driven(make_loaded(name), prefix_cache_bytes=2**24), [0]
    original = type(driven.loaded.model).__call__

    def call(model: Any, tokens: mx.array, *given: Any, **options: Any) -> Any:
        fed.append(fed[-1] + tokens.shape[1])
        return original(model, tokens, *given, **options)

    monkeypatch.setattr(type(driven.loaded.model), "__call__", call)
    prompt = [*prompt_of(100), *driven.loaded.tokenizer.openings.answer, *prompt_of(20, 3)]
    answer = driven.ask(request(prompt, 8))
    driven.finish()
    assert (100 in fed) is is_cut
    again = driven.ask(request([*prompt[:102], *prompt_of(9, 5)], 8, name="again"))
    driven.finish()
    assert again.finished().usage.num_cached_tokens == 100
    assert list(answer.finished().tokens) == oracle(driven.loaded, request(prompt, 8))


def test_the_rest_of_a_prompt_that_is_cut_is_fed_in_the_same_step() -> None:
    driven = Driven(make_loaded("lfm2"), prefix_cache_bytes=2**24)
    # Learns what prompts cost.
    driven.ask(request(prompt_of(9, 7), 2, name="earlier"))
    driven.finish()
    driven.ask(request([*prompt_of(40), *driven.loaded.tokenizer.openings.answer, *prompt_of(5, 3)], 8))
    driven.worker.step()
    assert driven.worker.members
    assert not driven.worker.prefilling


@pytest.mark.parametrize("name", every_kind_of_cache(CONFIGS, 2, of=3))
def test_a_prefix_that_two_prompts_share_serves_a_third(name: str, start_engine: StartEngine) -> None:
    """Send three prompts: with state, the second one shows at which length the state is worth keeping."""
    chat = Chat(start_engine, name)
    system = prompt_of(120)
    for other in range(3):
        _, usage = chat.say([*system, *prompt_of(40, other + 1)], seed=other)
    assert usage.num_cached_tokens == len(system)


@pytest.mark.parametrize("name", every_kind_of_cache(CONFIGS, 0, of=3))
def test_concurrent_prompts_prefill_their_shared_prefix_once(name: str, start_engine: StartEngine) -> None:
    """Send prompts at the same time: the later ones wait until the first has prefilled what they share."""
    engine, loaded = start_engine(name, prefill_chunk_tokens=32), make_loaded(name)
    system = prompt_of(130)
    asked = [request([*system, *prompt_of(30, i)], 12, name=f"{i}", seed=i) for i in range(1, 5)]
    answers = [ask(engine, one) for one in asked]
    assert [list(a.finished().tokens) for a in answers] == [oracle(loaded, one) for one in asked]
    assert cached_of(answers) == [0, 130, 130, 130]


def cached_of(answers: Sequence[Answer]) -> list[int]:
    """Return each answer's number of cached prompt tokens."""
    return [answer.events[-1].usage.num_cached_tokens for answer in answers]  # type: ignore[union-attr]


def test_the_prefilled_part_of_a_cancelled_prompt_is_kept(start_engine: StartEngine) -> None:
    engine = start_engine("llama", prefill_chunk_tokens=16)
    prompt = prompt_of(600)
    first = Answer()
    engine.submit(request(prompt, name="gone"), first)
    while not engine.status().num_running:
        pass
    engine.cancel("gone")
    first.failed()
    usage = ask(engine, request(prompt, 4, name="again")).finished().usage
    assert 0 < usage.num_cached_tokens < 600


@pytest.mark.parametrize("prefix_cache_bytes", [0, 10**8])
@pytest.mark.parametrize("with_drafts", [False, True])
def test_choices_of_one_prompt_share_its_prefill(
    prefix_cache_bytes: int, with_drafts: bool, start_engine: StartEngine
) -> None:
    """Send six sequences with one prompt, and one with another prompt, which need not wait for them."""
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
        make_sources=(lambda _: DraftSources({}, scored(0.0))) if with_drafts else None,
        load_draft=(lambda _: make_loaded("llama")) if with_drafts else None,
        draft_model="the one that load_draft makes" if with_drafts else None,
        num_draft_tokens=4,
        prefix_cache_bytes=prefix_cache_bytes,
        prefill_chunk_tokens=64,
    )
    fed.clear()
    asked = [request(prompt, 10, name=str(i), temperature=0.8, seed=i) for i in range(6)]
    asked.append(request(prompt_of(60, 1), 10, name="other"))
    answers = [ask(engine, one) for one in asked]
    loaded = make_loaded("llama")
    assert [list(answer.finished().tokens) for answer in answers] == [oracle(loaded, one) for one in asked]
    assert sum(fed) < 2 * len(prompt)


def test_a_prefix_that_cannot_be_split_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache(10**6, lambda: [KVCache()], False)
    for tokens in ([9, 9, 9], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        cache.put(tokens, lambda start, end, tokens=tokens: slice_of(tokens[start:end]), [])  # type: ignore[misc]
    num_split = 0

    def fail(kv_slice: KVSlice, start: int, end: int) -> KVSlice:
        nonlocal num_split
        num_split += 1
        if num_split == 3:
            raise MemoryError
        return sub_slice(kv_slice, start, end)

    monkeypatch.setattr("reprise.engine.kv_cache.buffers.sub_slice", fail)
    with pytest.raises(MemoryError):
        cache.put([1, 2, 7], lambda start, end: slice_of([1, 2, 7][start:end]), [])
    # The keys of the first four tokens were split already, and the values were not.
    assert cache.match([1, 2, 3, 4, 5, 6, 7]) == 0
    assert cache.match([9, 9, 9, 9]) == 3
    assert cache.num_bytes == 3 * BYTES_PER_TOKEN
    assert cache.status().num_entries == 1
