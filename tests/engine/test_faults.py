"""Never wedged: whatever a request does, every sink gets one terminal event and the others go on."""

import queue
from typing import Any

import mlx.core as mx
import pytest

from config.settings import Settings
from engine.engine import Engine
from engine.loading import ModelError
from engine.request import EngineError
from tests.engine.conftest import StartEngine
from tests.engine.support import Answer, ask, make_loaded, oracle, prompt_of, request

POISON = 4000


class Poisoned:
    """A model that raises as soon as it is fed the poison token."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = model.layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if (tokens == POISON).any().item():
            raise RuntimeError("poisoned")
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


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


def test_a_dead_worker_tells_everyone(start_engine: StartEngine) -> None:
    class Dying(Poisoned):
        def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
            if (tokens == POISON).any().item():
                raise SystemExit("struck")
            return super().__call__(tokens, cache)

    deaths: queue.SimpleQueue[str] = queue.SimpleQueue()
    engine = start_engine(wrap=Dying, on_death=deaths.put, max_rows=2)
    answers = [ask(engine, request(prompt_of(9, i), name=str(i), max_tokens=500)) for i in range(5)]
    answers.append(ask(engine, request([POISON, 6, 7], name="bad")))
    for answer in answers[:2]:
        engine.cancel(str(answers.index(answer)))
    assert "struck" in deaths.get(timeout=60)
    kinds = {
        answer.failed().kind for answer in answers[2:] if not answer.events or answer.events[-1].is_terminal
    }
    assert "engine" in kinds
    assert engine.status().state == "dead"
    with pytest.raises(EngineError, match="stopped"):
        engine.submit(request([6, 7]), Answer())


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
    assert engine.status().num_waiting == 0


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
        Engine(Settings(), load).start()
