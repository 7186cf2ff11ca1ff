"""Never wedged: whatever a request does, every sink gets one terminal event and the others continue."""

import dataclasses
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.drafters.base import Draft, DraftQuery
from reprise.engine.batch import batch
from reprise.engine.batch.sequence import Sequence
from reprise.engine.engine import Engine
from reprise.engine.interface.errors import EngineError, ModelError, SharedTableError
from reprise.engine.interface.events import Usage
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative import proposers
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import Oracle, scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import expected_tokens, loaded_once
from tests.engine.support import Answer, ask, make_loaded, make_tokenizer, oracle, prompt_of, request

POISON = 4000


class Poisoned:
    """A model that raises as soon as it is fed the poison token."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = model.layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        if (tokens == POISON).any().item():
            raise RuntimeError("poisoned")
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


def endless(number: int) -> GenerationRequest:
    """Make a request that fills the context, because its end token is forbidden."""
    forbidden = ((end_token(), -100.0),)
    return request(prompt_of(9, number), name=str(number), max_tokens=1000, logit_bias=forbidden)


def end_token() -> int:
    """Return the bundled tokenizer's end token."""
    return min(make_tokenizer().eos_ids)


@pytest.mark.parametrize("at", [0, 5, -1], ids=["prefill", "prefill too", "decode"])
def test_a_request_that_breaks_a_step_fails_alone(at: int, start_engine: StartEngine) -> None:
    engine = start_engine(wrap=Poisoned)
    good = [request(prompt_of(12 + i, i), name=str(i), max_tokens=40, temperature=0.9) for i in range(5)]
    bad_prompt = prompt_of(12, 77)
    bad_prompt[at] = POISON
    answers = [ask(engine, one) for one in good[:3]]
    bad = ask(engine, request(bad_prompt, name="bad"))
    answers += [ask(engine, one) for one in good[3:]]
    failed = bad.failed()
    assert failed.kind == "request"
    assert "poisoned" in failed.message
    loaded = make_loaded("llama")
    for one, answer in zip(good, answers, strict=True):
        assert list(answer.finished().tokens) == oracle(loaded, one)


class PoisonedDrafter(Oracle):
    """An oracle whose drafts break the step at their fifth token."""

    def propose(self, query: DraftQuery) -> Draft:
        draft = super().propose(query)
        tokens = [POISON if at == 4 else token for at, token in enumerate(draft.tokens)]
        return dataclasses.replace(draft, tokens=tokens)


@pytest.mark.parametrize("num_requests", [1, 4])
def test_a_draft_that_breaks_a_step_costs_nothing_but_drafts(
    num_requests: int, start_engine: StartEngine
) -> None:
    loaded = make_loaded("llama")
    requests = [request(prompt_of(12 + i, i), name=str(i), temperature=0.9) for i in range(num_requests)]
    expected = {one.prompt: oracle(loaded, one) for one in requests}
    drafter = PoisonedDrafter(expected, name="suffix")
    engine = start_engine(
        wrap=Poisoned, make_sources=lambda _: DraftSources({"suffix": drafter}, scored(1.0))
    )
    answers = [ask(engine, one) for one in requests]
    assert [list(answer.finished().tokens) for answer in answers] == list(expected.values())
    assert drafter.num_open == 0


def test_a_dead_worker_tells_everyone(start_engine: StartEngine) -> None:
    class Dying(Poisoned):
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            if (tokens == POISON).any().item():
                raise SystemExit("struck")
            return super().__call__(tokens, cache)

    deaths: queue.SimpleQueue[str] = queue.SimpleQueue()
    engine = start_engine(wrap=Dying, on_death=deaths.put, max_rows=13)
    answers = [ask(engine, endless(i)) for i in range(12)]
    engine.cancel("0")
    assert answers[0].failed().kind == "cancelled"
    answers.append(ask(engine, request([POISON, 6, 7], name="bad")))
    engine.cancel("1")
    assert answers[1].failed().kind == "cancelled"
    engine.cancel("2")
    assert "struck" in deaths.get(timeout=60)
    assert {answer.failed().kind for answer in answers[3:]} == {"engine"}
    assert engine.status().state == "dead"
    assert engine.status().num_waiting == 0
    with pytest.raises(EngineError, match="stopped"):
        engine.submit(request([6, 7]), Answer())


def test_rows_that_cannot_be_made_again_tell_everyone(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(wrap=Poisoned, max_rows=7)

    def broken(*_: Any) -> None:
        raise RuntimeError("no rows")

    answers = [ask(engine, endless(i)) for i in range(6)]
    monkeypatch.setattr(batch, "make_rows", broken)
    answers.append(ask(engine, request([6, POISON], name="bad")))
    engine.cancel("0")
    ends = [answer.failed() for answer in answers]
    assert {end.kind for end in ends[1:]} == {"engine"}
    assert engine.status().state == "dead"


def test_a_call_of_which_the_thread_dies_raises_in_its_caller(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine()

    def dying(_: Any) -> None:
        raise SystemExit("struck")

    monkeypatch.setattr(proposers, "reset", dying)
    with pytest.raises(SharedTableError, match="struck"):
        engine.table.reset()
    assert engine.status().state == "dead"


def test_a_fault_in_the_step_after_an_answer_s_end_fails_nobody_else(start_engine: StartEngine) -> None:
    engine = start_engine(wrap=Poisoned)
    force = ((POISON, 100.0),)
    innocent = request(prompt_of(12), name="innocent", max_tokens=60)
    answer = ask(engine, innocent)
    # Its only token is the poison. The answer is complete, but the next step was already dispatched with it.
    last = ask(engine, request(prompt_of(9), name="last", max_tokens=1, logit_bias=force))
    assert last.finished().tokens == (POISON,)
    assert list(answer.finished().tokens) == oracle(make_loaded("llama"), innocent)


def test_a_row_that_overflows_does_not_spoil_the_next_one_in_its_place(start_engine: StartEngine) -> None:
    class Overflowing(Poisoned):
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            logits: mx.array = self.model(tokens, cache=cache)
            if (tokens == POISON).any().item():
                for layer in cache:
                    layer.values = layer.values * mx.nan
            return logits

    engine = start_engine(wrap=Overflowing, prefix_cache_bytes=0)
    long = request(prompt_of(60), name="long", max_tokens=200)
    answer = ask(engine, long)
    ask(engine, request([POISON, *prompt_of(30)], name="bad", max_tokens=4)).finished()
    short = request(prompt_of(5), name="short")
    assert list(ask(engine, short).finished().tokens) == oracle(make_loaded("llama"), short)
    assert list(answer.finished().tokens) == oracle(make_loaded("llama"), long)


def test_a_sink_that_raises_harms_nobody_else(start_engine: StartEngine) -> None:
    engine = start_engine()

    def broken(_: object) -> None:
        raise ValueError("sink")

    engine.submit(request(prompt_of(9), name="broken"), broken)
    ask(engine, request(prompt_of(10), name="next")).finished()
    assert engine.status().state == "ready"


def test_a_request_that_can_never_be_counted_ends_and_harms_nobody(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = Sequence.usage

    def broken(self: Sequence) -> Usage:
        if self.request.id.startswith("bad"):
            raise RuntimeError("cannot count")
        return usage(self)

    monkeypatch.setattr(Sequence, "usage", broken)
    engine = start_engine(load=lambda _: loaded_once("llama"), max_rows=4)
    one = request(prompt_of(12), name="good", max_tokens=40)
    good = ask(engine, one)
    bad = ask(engine, request(prompt_of(9, 1), name="bad", max_tokens=4))
    cancelled = ask(engine, request(prompt_of(9, 2), name="bad cancelled", max_tokens=900))
    engine.cancel("bad cancelled")
    end = bad.failed()
    assert "cannot count" in end.message
    assert end.usage.num_prompt_tokens == 9
    assert cancelled.failed().kind == "cancelled"
    assert list(good.finished().tokens) == expected_tokens("llama", one)
    assert engine.status().state == "ready"


def test_restarted_rows_keep_penalties_and_stop_strings(start_engine: StartEngine) -> None:
    bias = {"logit_bias": tuple((token, 40.0) for token in range(100, 106)), "frequency_penalty": 0.9}
    requests = [request(prompt_of(10, i), name=str(i), max_tokens=40, **bias) for i in range(3)]
    clean = [ask(start_engine(), one).finished().tokens for one in requests]
    engine = start_engine(wrap=Poisoned)
    answers = [ask(engine, one) for one in requests]
    ask(engine, request([5, 6, POISON], name="bad")).failed()
    assert [answer.finished().tokens for answer in answers] == clean


def test_cancelling_frees_the_row_wherever_the_request_is(start_engine: StartEngine) -> None:
    engine = start_engine(max_rows=2, prefill_chunk_tokens=8)
    running = Answer()
    started: queue.SimpleQueue[None] = queue.SimpleQueue()
    running.on_delta = lambda: started.put(None)
    engine.submit(request(prompt_of(9), name="running", max_tokens=900), running)
    started.get(timeout=60)
    prefilling = ask(engine, request(prompt_of(900, 1), name="prefilling"))
    waiting = ask(engine, request(prompt_of(9, 2), name="waiting"))
    for name in ("waiting", "prefilling", "running", "unknown"):
        engine.cancel(name)
    assert [a.failed().kind for a in (running, prefilling, waiting)] == ["cancelled"] * 3
    asked = request(prompt_of(30, 3), name="next")
    assert list(ask(engine, asked).finished().tokens) == oracle(make_loaded("llama"), asked)
    status = engine.status()
    assert (status.num_running, status.num_waiting) == (0, 0)


def test_a_full_queue_is_refused_and_recovers(start_engine: StartEngine) -> None:
    engine = start_engine(max_rows=1, max_queue=1)
    first = ask(engine, request(prompt_of(9), name="1", max_tokens=900))
    second = ask(engine, request(prompt_of(9), name="2", max_tokens=2))
    with pytest.raises(EngineError) as refused:
        engine.submit(request(prompt_of(9), name="3"), Answer())
    assert refused.value.code == "queue_full"
    engine.cancel("1")
    first.failed()
    second.finished()
    ask(engine, request(prompt_of(9), name="4", max_tokens=2)).finished()


def test_stopping_lets_running_requests_finish_and_refuses_new_ones(start_engine: StartEngine) -> None:
    engine = start_engine(max_rows=1)
    running = Answer()
    started: queue.SimpleQueue[None] = queue.SimpleQueue()
    running.on_delta = lambda: started.put(None)
    engine.submit(request(prompt_of(9), name="running", max_tokens=60), running)
    waiting = ask(engine, request(prompt_of(9), name="waiting"))
    started.get(timeout=60)
    engine.stop(drain_s=30)
    running.finished()
    assert waiting.failed().kind == "draining"
    with pytest.raises(EngineError, match="not taking requests"):
        engine.submit(request(prompt_of(9)), Answer())


def test_a_stop_that_runs_out_of_time_ends_what_still_runs(start_engine: StartEngine) -> None:
    engine = start_engine()
    running = ask(engine, request(prompt_of(9), max_tokens=900))
    engine.stop(drain_s=0)
    assert running.failed().kind == "draining"


def test_a_model_that_cannot_be_loaded_is_a_model_error() -> None:
    def load(_: object) -> Any:
        raise OSError("no such disk")

    with pytest.raises(ModelError, match="no such disk"):
        Engine(Settings(), Makers(load)).start()


def test_stopping_an_engine_that_never_started_or_twice_is_harmless(start_engine: StartEngine) -> None:
    Engine(Settings(), Makers(lambda _: make_loaded("llama"))).stop(drain_s=0)
    engine = start_engine()
    engine.stop(drain_s=0)
    engine.stop(drain_s=0)


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param("config.json", marks=pytest.mark.slow),
        pytest.param("tokenizer.json", marks=pytest.mark.slow),
        "model.safetensors",
    ],
)
def test_an_incomplete_model_folder_ends_the_process_with_a_message(missing: str, tmp_path: Path) -> None:
    for file in Path(BUNDLED_MODEL).iterdir():
        if file.is_file() and file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    reprise = Path(sys.executable).with_name("reprise")
    command = [str(reprise), "serve", "--port", "0", "--model", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "reprise: " in ended.stderr
