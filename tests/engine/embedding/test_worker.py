"""Vectors do not depend on what is computed beside them, and no request holds up the others."""

from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from reprise.config.settings import Settings
from reprise.engine.embedding.embedding_engine import OVERFLOWED, EmbeddingWorker
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.embedding.passes import Job, bytes_of, choose_members
from reprise.engine.interface.embeddings import Embedded, EmbeddingInput, EmbeddingRequest, count_alike
from reprise.engine.interface.events import Failed
from reprise.engine.memory.budget import SharedMemory
from tests.counted_calls import count_calls
from tests.engine.embedding.encoder_folders import write_encoder
from tests.engine.embedding.test_encoder import texts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_encoder(tmp_path_factory.mktemp("models") / "tiny")
    return load_embedding_model(Settings(model=str(folder)), "tiny")


class Driven:
    """A worker whose steps a test takes. ended: events by the request's id."""

    def __init__(self, model, max_stall_ms=1e9, max_tokens=2048, prefix_bytes=None):
        self.worker = EmbeddingWorker(max_stall_ms, max_tokens, prefix_bytes)
        self.worker.load(model)
        self.ended = {}

    def submit(self, name, inputs):
        given = tuple(EmbeddingInput(tuple(one)) for one in inputs)
        request = EmbeddingRequest(name, given, num_alike=count_alike(given))
        self.worker.submit(request, lambda event: self.ended.update({name: event}))

    def run(self, num_decoding=0):
        num_steps = 0
        while self.worker.has_work:
            self.worker.step(num_decoding)
            num_steps += 1
            assert num_steps < 10_000
        return num_steps


def alone(model, tokens):
    driven = Driven(model)
    driven.submit("alone", [tokens])
    driven.run()
    return driven.ended["alone"].vectors[0]


def foreseen_is_enough(model):
    """Check that a pass takes no more memory than was foreseen."""
    driven = Driven(model)
    driven.submit("all", [[5] * 70] * 29)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    driven.run(1)
    assert driven.worker.num_passes == 1
    assert 0 < mx.get_peak_memory() - before <= bytes_of(model.config, 29, 70)


@pytest.mark.parametrize("num_decoding", [0, 1])
def test_a_vector_is_the_same_alone_and_in_any_batch_to_the_last_bit(model, num_decoding):
    driven, given = Driven(model), texts(40)
    driven.submit("long", given)
    driven.submit("short", given[:3])
    driven.run(num_decoding)
    expected = tuple(alone(model, tokens) for tokens in given)
    assert driven.ended["long"] == Embedded(expected)
    assert driven.ended["short"] == Embedded(expected[:3])


def test_minilm_s_vectors_are_the_same_alone_and_in_a_batch_to_the_last_bit(minilm_asker):
    given = texts(6, most=24, seed=1)
    assert minilm_asker.raw(given) == tuple(minilm_asker.raw([tokens])[0] for tokens in given)


def test_texts_of_about_one_length_share_a_pass(model):
    driven, given = Driven(model), texts(64)
    driven.submit("all", given)
    driven.run(num_decoding=1)
    assert driven.worker.num_passes < len(given) / 4
    assert driven.worker.num_embedded == len(given)
    assert driven.worker.num_embedded_tokens == sum(map(len, given))


@pytest.mark.parametrize(("max_stall_ms", "num_steps"), [(1e-6, 3), (1e9, 1)])
def test_beside_rows_a_step_takes_as_many_layers_as_they_may_wait_for(model, max_stall_ms, num_steps):
    driven = Driven(model, max_stall_ms)
    driven.submit("one", texts(1))
    assert driven.run(num_decoding=1) == num_steps


def test_of_a_long_text_a_step_takes_some_tokens_of_a_layer_and_ends_in_between(model):
    text, driven = [5] * 78, Driven(model, max_stall_ms=1e-6)
    num_layers = len(model.body.layers)
    driven.submit("one", [text])
    num_progressed = driven.worker.num_progressed
    # Keys and values of 64 tokens and of 14, then the queries of these.
    assert driven.run(num_decoding=1) == num_layers * 2 * 2
    assert driven.worker.num_progressed == num_progressed + num_layers * 2 * 2
    assert driven.ended["one"].vectors == (alone(model, text),)
    driven.submit("gone", [text])
    driven.worker.step(1)
    driven.worker.cancel("gone")
    assert not driven.worker.has_work


def test_a_pass_that_begins_alone_is_no_larger_as_rows_may_come(model):
    driven = Driven(model, max_stall_ms=1e-6)
    driven.submit("known", [[5] * 8])
    driven.run()
    driven.submit("all", [[5] * 8] * 4)
    driven.run()
    assert driven.worker.num_passes == 5


def test_no_pass_has_more_tokens_than_it_may_unless_one_text_has(model):
    driven = Driven(model, max_tokens=40)
    driven.submit("all", [[5] * 10] * 8 + [[5] * 60])
    driven.run()
    assert driven.worker.num_passes == 3


def test_a_short_request_overtakes_a_long_one_and_the_oldest_is_not_forgotten():
    def job(name, lengths):
        inputs = tuple(EmbeddingInput((1,) * length) for length in lengths)
        return Job(EmbeddingRequest(name, inputs), print)

    jobs = [job("long", [60] * 50), job("short", [4])]
    never = [choose_members(jobs, num_passes, lambda *_: False)[0].job.request.id for num_passes in range(8)]
    assert never == ["short", "short", "short", "long"] * 2


def test_texts_of_others_fill_up_a_pass_if_they_are_nearly_as_long():
    jobs = [
        Job(EmbeddingRequest(name, (EmbeddingInput((1,) * length),)), print)
        for name, length in (("a", 40), ("b", 38), ("c", 20), ("d", 60))
    ]
    found = choose_members([jobs[0], *jobs[1:]], 3, lambda *_: True)
    assert [member.job.request.id for member in found] == ["a", "b"]


def test_choosing_a_short_text_does_not_look_at_all_longer_ones():
    def job(name, lengths):
        inputs = tuple(EmbeddingInput((1,) * length) for length in lengths)
        return Job(EmbeddingRequest(name, inputs), print)

    few, many = ([job("short", [3]), *(job(str(n), [9] * num) for n in range(4))] for num in (8, 1024))
    calls = [count_calls(partial(choose_members, jobs, 0, lambda *_: True)) for jobs in (few, many)]
    assert calls[1] < 3 * calls[0]


def test_a_cancelled_request_ends_at_once_and_its_pass_too(model):
    driven = Driven(model, max_stall_ms=1e-6)
    driven.submit("gone", texts(30))
    driven.worker.step(1)
    driven.worker.cancel("gone")
    assert not driven.worker.has_work
    assert driven.ended == {"gone": Failed("cancelled", "the client left")}
    assert driven.worker.memory.held_bytes == driven.worker.memory.weight_bytes


def test_a_request_that_fails_ends_alone(model):
    class Broken:
        """An encoder that fails on one token."""

        def __getattr__(self, name):
            return getattr(model.body, name)

        def begin(self, tokens, types, num_tokens):
            if (np.array(tokens) == 666).any():
                raise RuntimeError("no such token")
            return model.body.begin(tokens, types, num_tokens)

    driven = Driven(replace(model, body=Broken()))
    driven.submit("known", [[5] * 8])
    driven.run()
    driven.submit("good", [[5] * 10])
    driven.submit("bad", [[666] * 10])
    driven.submit("also good", [[6] * 10])
    driven.run()
    assert driven.ended["bad"] == Failed("request", "RuntimeError: no such token")
    assert driven.ended["good"] == Embedded((alone(model, [5] * 10),))
    assert driven.ended["also good"] == Embedded((alone(model, [6] * 10),))


def test_a_vector_that_overflows_ends_its_request_alone(model):
    class Overflowing:
        """An encoder whose states overflow at one token."""

        def __getattr__(self, name):
            return getattr(model.body, name)

        def begin(self, tokens, types, num_tokens):
            hidden, mask = model.body.begin(tokens, types, num_tokens)
            return mx.where((tokens == 666)[..., None], float("inf"), hidden), mask

    driven = Driven(replace(model, body=Overflowing()))
    driven.submit("bad", [[666] * 10, [5] * 10])
    driven.submit("good", [[5] * 10])
    driven.run()
    assert driven.ended == {
        "bad": Failed("request", OVERFLOWED),
        "good": Embedded((alone(model, [5] * 10),)),
    }


def test_a_pass_takes_no_more_memory_than_was_foreseen(model):
    foreseen_is_enough(model)


def test_what_never_fits_into_memory_fails_and_says_so(model):
    driven = Driven(model)
    memory = driven.worker.memory
    memory.shared = SharedMemory(memory.weight_bytes + 1000, lambda _: False)
    memory.shared.holders.append(memory)
    driven.submit("large", texts(2))
    driven.run()
    assert "--memory-bytes" in driven.ended["large"].message


def test_a_pass_waits_for_memory_that_others_hold(model):
    class Other:
        weight_bytes = held_bytes = 10**9
        give_up = staticmethod(lambda _: False)

    driven, other = Driven(model), Other()
    memory = driven.worker.memory
    memory.shared = SharedMemory(10**9 + memory.weight_bytes, lambda _: False)
    memory.shared.holders += [memory, other]
    driven.submit("waits", texts(2))
    driven.worker.step(0)
    assert driven.worker.is_blocked
    memory.shared.holders.remove(other)
    driven.run()
    assert isinstance(driven.ended["waits"], Embedded)


def test_what_is_computed_survives_an_unload(model):
    driven, given = Driven(model, max_stall_ms=1e-6, max_tokens=1), texts(3)
    driven.submit("all", given)
    while not driven.worker.num_embedded:
        driven.worker.step(1)
    driven.worker.step(1)
    driven.worker.unload()
    assert not driven.worker.has_work
    assert driven.worker.num_waiting == 2
    driven.worker.load(model)
    driven.run()
    assert driven.ended["all"] == Embedded(tuple(alone(model, tokens) for tokens in given))
    assert driven.worker.num_embedded == 3
