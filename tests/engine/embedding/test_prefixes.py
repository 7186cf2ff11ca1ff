"""What texts begin with alike is computed once, and changes no bit of any vector."""

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.engine.embedding import embedding_engine
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.embedding.passes import MIN_TOKENS, bytes_of
from reprise.engine.interface.embeddings import (
    MAX_ALIKE,
    Embedded,
    EmbeddingInput,
    EmbeddingRequest,
    count_alike,
)
from reprise.engine.memory.budget import SharedMemory
from tests.engine.embedding.encoder_folders import write_modules
from tests.engine.embedding.test_decoder import texts, write_decoder
from tests.engine.embedding.test_worker import Driven
from tests.engine.model_folders import write_model

INSTRUCTION = list(range(100, 120))
QUERIES = [INSTRUCTION + text for text in texts(24, most=30)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return loaded(write_decoder(tmp_path_factory.mktemp("models") / "tiny"))


def loaded(folder):
    return load_embedding_model(Settings(model=str(folder)), "tiny")


def without(model, inputs):
    """Vectors of inputs that were computed as a whole, one by one."""
    driven = Driven(model, prefix_bytes=0)
    for number, one in enumerate(inputs):
        driven.submit(number, [one])
        driven.run()
    assert driven.worker.prefixes is None
    assert driven.worker.num_computed == sum(map(len, inputs))
    return tuple(driven.ended[number].vectors[0] for number in range(len(inputs)))


def test_an_instruction_is_computed_once_for_all_texts_of_a_request(model):
    driven, expected = Driven(model), without(model, QUERIES)
    driven.submit("all", QUERIES)
    driven.run()
    assert driven.ended["all"] == Embedded(expected)
    rest = sum(len(one) - len(INSTRUCTION) for one in QUERIES)
    assert driven.worker.num_computed == len(INSTRUCTION) + rest
    driven.submit("again", QUERIES)
    driven.run()
    assert driven.ended["again"] == Embedded(expected)
    assert driven.worker.num_computed == len(INSTRUCTION) + 2 * rest
    assert driven.worker.prefixes.kept.status().num_entries == 1
    assert driven.worker.num_embedded_tokens == 2 * sum(map(len, QUERIES))


def test_requests_of_one_text_each_share_an_instruction_after_the_first(model):
    driven, expected = Driven(model), without(model, QUERIES)
    for number, query in enumerate(QUERIES):
        driven.submit(number, [query])
        driven.run()
    assert tuple(driven.ended[number].vectors[0] for number in range(len(QUERIES))) == expected
    # The first one whole; with the second one the instruction is seen, and computed by itself.
    spared = (len(QUERIES) - 2) * len(INSTRUCTION)
    # A word or two that two queries had in common may be kept with it.
    assert 0 <= sum(map(len, QUERIES)) - spared - driven.worker.num_computed <= MIN_TOKENS * 2


def test_requests_that_wait_together_share_passes_too(model):
    driven, expected = Driven(model), without(model, QUERIES)
    for number, query in enumerate(QUERIES):
        driven.submit(number, [query])
    driven.run()
    assert tuple(driven.ended[number].vectors[0] for number in range(len(QUERIES))) == expected
    assert driven.worker.num_passes < len(QUERIES) * 2 / 3
    assert driven.worker.num_computed < sum(map(len, QUERIES)) - 20 * len(INSTRUCTION)


def test_a_head_that_goes_on_after_another_is_computed_from_there(model):
    longer = [INSTRUCTION + [7] * 12 + text for text in texts(6)]
    driven, expected = Driven(model), without(model, longer)
    driven.submit("short", QUERIES)
    driven.run()
    before = driven.worker.num_computed
    driven.submit("long", longer)
    driven.run()
    assert driven.ended["long"] == Embedded(expected)
    assert driven.worker.num_computed - before == 12 + sum(map(len, texts(6)))


@pytest.mark.parametrize(
    "given",
    [
        [[*INSTRUCTION, 5], INSTRUCTION],
        [INSTRUCTION, INSTRUCTION],
        [[*range(MIN_TOKENS - 1), 9], [*range(MIN_TOKENS - 1), 8]],
        [[3], [3]],
        [[1] * (MAX_ALIKE + 9) + [5], [1] * (MAX_ALIKE + 9) + [6]],
    ],
    ids=["one is the other's beginning", "equal", "too short a head", "a token", "a long head"],
)
def test_any_two_texts_keep_their_vectors(model, given):
    driven, expected = Driven(model), without(model, given)
    for name in ("first", "second"):
        driven.submit(name, given)
        driven.run()
        assert driven.ended[name] == Embedded(expected)


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", mx.float32), ("qwen3", mx.float16), ("mistral", mx.bfloat16)], ids=str
)
def test_other_families_and_narrow_numbers_keep_their_bits_too(tmp_path, name, dtype):
    folder = write_decoder(tmp_path / "tiny", "llama" if name == "mistral" else name, model_type=name)
    arrays = {key: array.astype(dtype) for key, array in mx.load(str(folder / "model.safetensors")).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    model = loaded(folder)
    assert model.info.dtype == str(dtype).removeprefix("mlx.core.")
    driven, expected = Driven(model), without(model, QUERIES)
    driven.submit("all", QUERIES)
    driven.run()
    assert driven.ended["all"] == Embedded(expected)


def test_tokens_that_are_pooled_are_computed_with_every_text(tmp_path):
    write_model(tmp_path / "tiny", "qwen3", seed=3)
    write_modules(tmp_path / "tiny", {"pooling_mode_mean_tokens": True, "include_prompt": False}, "Normalize")
    model = loaded(tmp_path / "tiny")
    prompted = tuple(EmbeddingInput(tuple(one), first_pooled=12) for one in QUERIES)
    driven, whole = Driven(model), Driven(model, prefix_bytes=0)
    for one in (driven, whole):
        request = EmbeddingRequest("all", prompted, num_alike=count_alike(prompted))
        one.worker.submit(request, lambda event, of=one: of.ended.update(all=event))
        one.submit("counted", QUERIES)
        one.run()
    assert driven.ended == whole.ended
    assert driven.worker.num_computed == whole.worker.num_computed - 12 * (len(QUERIES) - 1)


def test_a_model_that_attends_in_both_directions_keeps_none(tmp_path):
    driven = Driven(loaded(write_decoder(tmp_path / "tiny", is_causal=False)))
    assert driven.worker.prefixes is None


def test_a_cancelled_head_leaves_nothing_behind(model):
    driven = Driven(model, max_stall_ms=1e-6)
    driven.submit("gone", QUERIES)
    driven.worker.step(1)
    driven.worker.cancel("gone")
    assert not driven.worker.has_work
    assert driven.worker.num_waiting == 0
    assert driven.worker.memory.held_bytes == driven.worker.memory.weight_bytes


def test_an_unload_in_a_head_loses_no_text(model):
    driven = Driven(model, max_stall_ms=1e-6)
    driven.submit("all", QUERIES)
    driven.worker.step(1)
    driven.worker.unload()
    assert driven.worker.num_waiting == len(QUERIES)
    driven.worker.load(model)
    driven.run()
    assert driven.ended["all"] == Embedded(without(model, QUERIES))


def test_heads_give_way_to_whatever_needs_memory(model):
    driven = Driven(model)
    driven.submit("all", QUERIES)
    driven.run()
    memory = driven.worker.memory
    kept_bytes = memory.held_bytes - memory.weight_bytes
    assert kept_bytes == driven.worker.prefixes.kept.num_bytes > 0
    assert memory.give_up(1)
    assert memory.held_bytes == memory.weight_bytes
    assert not memory.give_up(1)
    driven.submit("again", QUERIES)
    driven.run()
    assert driven.ended["again"] == driven.ended["all"]


def test_a_text_that_fits_only_as_a_whole_is_computed_as_one(model):
    driven, expected = Driven(model), without(model, QUERIES)
    memory = driven.worker.memory
    room = max(bytes_of(model.config, 1, len(one)) for one in QUERIES)
    memory.shared = SharedMemory(memory.weight_bytes + room, lambda _: False)
    memory.shared.holders.append(memory)
    driven.submit("all", QUERIES)
    driven.run()
    assert driven.ended["all"] == Embedded(expected)


def test_a_pass_after_a_head_takes_no_more_memory_than_was_foreseen(model):
    driven = Driven(model)
    inputs = [[6] * 400 + [number] * 30 for number in range(10, 40)]
    driven.submit("all", inputs)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    driven.run(1)
    kept_bytes = driven.worker.prefixes.kept.num_bytes
    assert driven.worker.num_computed == 400 + 30 * 30
    assert 0 < mx.get_peak_memory() - before - kept_bytes <= bytes_of(model.config, 30, 30, 400)


def test_heads_and_what_follows_them_are_the_same_if_layers_are_cut(model, monkeypatch):
    expected = without(model, QUERIES)
    monkeypatch.setattr(embedding_engine, "MIN_TOKENS", 5)
    driven = Driven(model, max_stall_ms=1e-6)
    for name in ("first", "again"):
        driven.submit(name, QUERIES)
        driven.run(num_decoding=1)
        assert driven.ended[name] == Embedded(expected)
    assert driven.worker.prefixes.kept.status().num_entries > 0
