"""Several models on one thread: each answers as if it were alone, and memory comes back."""

import gc
import logging
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.process_memory import frozen
from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.repetition import score_in_slices
from reprise.engine.engine import Engine, make_engine
from reprise.engine.generating.generating_engine import GeneratingEngine
from reprise.engine.interface.errors import EngineError, ModelError, ModelLoadError, SharedTableError
from reprise.engine.interface.events import Failed, Finished
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.model.hub import HubCache
from reprise.engine.pool.catalogue import Catalogue
from reprise.engine.pool.model_engine import Inbox
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.proposers import DraftSources
from tests.engine.model_folders import answer_of, answer_with, write_adapter, write_model, write_models
from tests.engine.support import Answer, prompt_of, request, wait_until
from tests.engine.test_machine import POISON, Breaking

StartPool = Callable[..., Engine]

NAMES = ("one", "org/two", "three")
FOR_TWO, FOR_ONE = 17 * 2**20, 15 * 2**20
"""Memory for two of the models, or one, and a request: 2.3 MiB of weights each, and 10.6 MiB."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: one, org/two, three, and broken, whose weights are cut off."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def start_pool(models: Path, tmp_path: Path) -> Iterator[StartPool]:
    """Return a function that starts a pool on the folder's models, the first of them loaded."""
    pools: list[Engine] = []

    def start(first: str = "one", sections: Any = None, make_sources: Any = None, **settings: Any) -> Engine:
        wanted = Settings(**{"model": str(models / first), "models_dir": str(models)} | settings)
        catalogue = Catalogue(wanted, HubCache(tmp_path / "hub"))
        pool = Engine(wanted, sections=sections, make_sources=make_sources, catalogue=catalogue)
        pool.start()
        pools.append(pool)
        return pool

    yield start
    for pool in pools:
        pool.stop(drain_s=0)


def make_lookup_drafters(settings: Settings) -> Any:
    return lambda name: DraftSources(make_drafters(settings, name), score_in_slices)


def ask(pool: Engine, name: str, asked: GenerationRequest, keep_s: float | None = None) -> Answer:
    """Ask a model of the pool, which is loaded for it; return the Answer."""
    use = pool.acquire(name).result(60)
    answer = Answer()
    use.keep_s = keep_s
    use.engine.submit(asked, answer)
    answer.cancel = partial(use.engine.cancel, asked.id)  # type: ignore[attr-defined]
    use.end()
    return answer


def expect(pool: Engine, name: str, prompt: Sequence[int]) -> None:
    """Have a model read a prompt ahead, if it is loaded."""
    if use := pool.use_loaded(name):
        assert isinstance(use.engine, GeneratingEngine)
        use.engine.expect([request(prompt, 1, name="expected")])
        use.end()


def states(pool: Engine) -> dict[str, str]:
    return {entry.name: entry.state for entry in pool.entries()}


def test_models_are_listed_and_loaded_when_a_request_asks_for_them(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool()
    assert states(pool) == {"one": "loaded", "broken": "unloaded", "org/two": "unloaded", "three": "unloaded"}
    for name in ("org/two", "one", "three"):
        asked = request(prompt_of(20), temperature=0.8)
        assert list(ask(pool, name, asked).finished().tokens) == answer_of(models / name, asked)
    assert states(pool) == {"one": "loaded", "broken": "unloaded", "org/two": "loaded", "three": "loaded"}
    [entry] = [entry for entry in pool.entries() if entry.name == "org/two"]
    assert entry.context_tokens == 1024
    assert entry.info is not None
    assert entry.size_bytes == entry.info.weight_bytes > 0


def test_models_answer_at_the_same_time_as_if_each_were_alone(start_pool: StartPool, models: Path) -> None:
    pool = start_pool()
    names = ("one", "org/two", "three")
    asked = [
        request(prompt_of(30 + 7 * at, at), max_tokens=60, name=f"r{at}", temperature=0.7, seed=at)
        for at in range(9)
    ]
    answers = [(names[at % 3], one, ask(pool, names[at % 3], one)) for at, one in enumerate(asked)]
    for name, one, answer in answers:
        assert list(answer.finished().tokens) == answer_of(models / name, one)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("nobody", "unknown", "no model nobody"),
        ("../one", "unknown", "no model"),
        ("/etc", "unknown", "no model"),
        ("broken", "not_loadable", "model 'broken' cannot be loaded"),
    ],
)
def test_a_model_that_cannot_be_had_is_an_error_and_others_go_on(
    start_pool: StartPool, models: Path, name: str, kind: str, message: str
) -> None:
    pool = start_pool()
    asked = request(prompt_of(20), max_tokens=200)
    running = ask(pool, "one", asked)
    with pytest.raises(ModelLoadError, match=message) as raised:
        pool.acquire(name).result(60)
    assert raised.value.kind == kind
    assert list(running.finished().tokens) == answer_of(models / "one", asked)
    assert list(ask(pool, "three", asked).finished().tokens) == answer_of(models / "three", asked)


def test_a_model_too_large_for_all_memory_is_an_error(
    start_pool: StartPool, models: Path, tmp_path: Path
) -> None:
    large = shutil.copytree(models / "one", tmp_path / "models" / "large")
    # A file with a hole takes no disk.
    os.truncate(large / "model.safetensors", 300 * 2**20)
    pool = start_pool("one", memory_bytes=200 * 2**20, models_dir=str(large.parent))
    with pytest.raises(ModelLoadError, match=r"model 'large' takes .* MiB at least") as raised:
        pool.acquire("large").result(60)
    assert raised.value.kind == "too_large"
    pool.acquire("one").result(60).end()


def test_an_unloaded_model_gives_its_memory_back_and_is_loaded_again(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool()
    asked = request(prompt_of(50), max_tokens=40)
    before = pool.counts().active_bytes
    for _ in range(2):
        expected = answer_of(models / "three", asked)
        gc.collect()
        before = pool.counts().active_bytes
        assert list(ask(pool, "three", asked).finished().tokens) == expected
        pool.unload("three").result(60)
        assert states(pool)["three"] == "unloaded"
        assert pool.counts().active_bytes == before


def test_a_model_without_requests_is_unloaded_after_a_while_or_when_its_request_says(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool(idle_unload_s=0.2)
    asked = request(prompt_of(20))
    ask(pool, "three", asked, keep_s=-1).finished()
    ask(pool, "org/two", asked).finished()
    wait_until(lambda: states(pool)["one"] == states(pool)["org/two"] == "unloaded")
    assert states(pool)["three"] == "loaded"
    ask(pool, "three", asked, keep_s=0).finished()
    wait_until(lambda: states(pool)["three"] == "unloaded")
    # Also the one that it started with comes back.
    assert list(ask(pool, "one", asked).finished().tokens) == answer_of(models / "one", asked)


def test_unloading_waits_for_answers(start_pool: StartPool, models: Path) -> None:
    pool = start_pool()
    asked = request(prompt_of(20), max_tokens=300)
    answer = ask(pool, "three", asked)
    left = pool.unload("three")
    again = pool.acquire("three")
    assert list(answer.finished().tokens) == answer_of(models / "three", asked)
    left.result(60)
    again.result(60).end()
    assert states(pool)["three"] == "loaded"


def test_an_unload_that_nobody_waits_for_holds_up_no_request(start_pool: StartPool) -> None:
    pool = start_pool()
    busy = pool.acquire("one").result(60)
    left = pool.unload("one")
    again = pool.acquire("one")
    assert left.cancel()
    again.result(60).end()
    busy.end()
    assert states(pool)["one"] == "loaded"


def test_requests_to_other_models_do_not_wait_for_one_to_be_unloaded_or_loaded(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool()
    asked = request(prompt_of(20), max_tokens=20)
    ask(pool, "three", asked).finished()
    busy = pool.acquire("one").result(60)
    left = pool.unload("one")
    again = pool.acquire("one")
    # One that is loaded, and one that has to be.
    for name in ("three", "org/two"):
        assert list(ask(pool, name, asked).finished().tokens) == answer_of(models / name, asked)
    assert not left.done()
    assert not again.done()
    busy.end()
    left.result(60)
    again.result(60).end()


def test_models_read_ahead_while_none_has_work(start_pool: StartPool, models: Path) -> None:
    pool = start_pool()
    ask(pool, "org/two", request(prompt_of(5), 1)).finished()
    prompts = {name: prompt_of(900, at) for at, name in enumerate(("one", "org/two"))}
    for name, prompt in prompts.items():
        expect(pool, name, prompt)
    # It comes while one of them is being read, or before.
    asked = request(prompt_of(30, 7), 30, name="other")
    assert list(ask(pool, "one", asked).finished().tokens) == answer_of(models / "one", asked)
    wait_until(lambda: pool.counts().num_read_ahead == 2 * 899 and not pool.counts().num_to_read)
    assert pool.status().num_running == 0
    for name, prompt in prompts.items():
        asked = request([*prompt, 5, 6], 8, name=name)
        finished = ask(pool, name, asked).finished()
        assert list(finished.tokens) == answer_of(models / name, asked)
        assert finished.usage.num_read_ahead_tokens == finished.usage.num_cached_tokens == 899


def test_nothing_is_unloaded_to_read_ahead(start_pool: StartPool) -> None:
    pool = start_pool(memory_bytes=FOR_TWO)
    ask(pool, "org/two", request(prompt_of(5), 1)).finished()
    held = states(pool)
    expect(pool, "one", prompt_of(1000))
    ask(pool, "org/two", request(prompt_of(6), 1)).finished()
    assert states(pool) == held


def test_a_request_is_answered_and_a_stop_obeyed_while_a_model_reads(start_pool: StartPool) -> None:
    pool = start_pool()
    expect(pool, "one", prompt_of(1000))
    wait_until(lambda: pool.counts().num_to_read > 0 or pool.counts().num_read_ahead > 0)
    assert isinstance(ask(pool, "one", request(prompt_of(5), 3)).end(), Finished)
    expect(pool, "one", prompt_of(1000, 3))
    pool.stop(drain_s=0)
    assert pool.status().state == "draining"


def test_the_one_unused_for_longest_is_unloaded_when_memory_needs_it(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool(memory_bytes=FOR_TWO)
    asked = request(prompt_of(20), max_tokens=30)
    loaded = []
    for name in ("one", "org/two", "one", "three", "org/two", "one"):
        assert list(ask(pool, name, asked).finished().tokens) == answer_of(models / name, asked)
        loaded.append({entry.name for entry in pool.entries() if entry.state == "loaded"})
    assert loaded == [
        {"one"},
        {"one", "org/two"},
        {"one", "org/two"},
        {"one", "three"},
        {"three", "org/two"},
        {"org/two", "one"},
    ]


@pytest.mark.parametrize("memory_bytes", [FOR_TWO, FOR_ONE], ids=["for two models", "for one model"])
def test_what_does_not_fit_beside_others_waits_and_no_answer_is_lost(
    start_pool: StartPool, models: Path, memory_bytes: int
) -> None:
    pool = start_pool(memory_bytes=memory_bytes)
    names = ("one", "org/two", "three")
    asked = [request(prompt_of(30 + at, at), max_tokens=40, name=f"r{at}") for at in range(9)]
    uses = [pool.acquire(names[at % 3]) for at in range(9)]
    answers = []
    for one, waiting in zip(asked, uses, strict=True):
        answers.append(Answer())
        use = waiting.result(60)
        use.engine.submit(one, answers[-1])
        use.end()
    for at, (one, answer) in enumerate(zip(asked, answers, strict=True)):
        assert list(answer.finished().tokens) == answer_of(models / names[at % 3], one)


Asked = list[tuple[str, GenerationRequest, Answer]]
"""Models, requests to them, and what came."""


def check_ends(
    asked: Asked, cancelled: set[str], answer: Callable[[str, GenerationRequest], list[int]]
) -> None:
    """Every answer must be right, or cancelled by the test. answer: returns the tokens of the right one."""
    for name, one, given in asked:
        end = given.end()
        if isinstance(end, Failed):
            assert end.kind == "cancelled", end
            assert one.id in cancelled
        else:
            assert isinstance(end, Finished)
            assert list(end.tokens) == answer(name, one)


def run_at_random(
    pool: Engine, models: Path, num_rounds: int, seed: int, names: Sequence[str] = NAMES
) -> None:
    """Load, unload, ask, cancel and read ahead at random; every answer must be right, or cancelled here."""
    chance = random.Random(seed)
    asked: Asked = []
    cancelled: set[str] = set()
    for at in range(num_rounds):
        name = chance.choice(names)
        match chance.choice(["ask", "ask", "ask", "unload", "load", "cancel", "expect", "expect"]):
            case "ask":
                one = request(
                    prompt_of(chance.choice([5, 40, 90]), at % 3), chance.choice([3, 30]), name=f"r{at}",
                    temperature=0.8, seed=at % 4,
                )  # fmt: skip
                asked.append((name, one, ask(pool, name, one, chance.choice([None, 0, -1]))))
            case "unload":
                pool.unload(name)
            case "expect":
                expect(pool, name, prompt_of(chance.choice([40, 90, 900]), at % 3))
            case "load":
                pool.acquire(name).add_done_callback(lambda future: future.result().end())
            case "cancel" if asked:
                _, one, answer = chance.choice(asked)
                cancelled.add(one.id)
                answer.cancel()  # type: ignore[attr-defined]
    check_ends(asked, cancelled, lambda name, one: answer_of(models / name, one))


@pytest.mark.parametrize(
    ("num_rounds", "memory_bytes"),
    [
        pytest.param(10, FOR_ONE, id="for one model"),
        *(pytest.param(100, memory, marks=pytest.mark.slow) for memory in (None, FOR_TWO, FOR_ONE)),
    ],
)
def test_any_order_of_loads_and_requests_leaves_nothing_behind(
    start_pool: StartPool, models: Path, num_rounds: int, memory_bytes: int | None
) -> None:
    check_nothing_is_left(start_pool(memory_bytes=memory_bytes), models, num_rounds)


def check_nothing_is_left(pool: Engine, models: Path, num_rounds: int, names: Sequence[str] = NAMES) -> None:
    """Run at random twice; after the second time memory must hold what it held after the first."""
    for name in names:
        answer_of(models / name, request(prompt_of(5), 1))
    gc.collect()
    mx.clear_cache()
    run_at_random(pool, models, num_rounds, num_rounds, names)
    for name in names:
        pool.unload(name).result(60)
    baseline = pool.counts().active_bytes
    run_at_random(pool, models, num_rounds, num_rounds + 1, names)
    for name in names:
        pool.unload(name).result(60)
    assert set(states(pool).values()) == {"unloaded"}
    assert pool.counts().active_bytes == baseline


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_quantized_keys_an_adapter_and_drafts_change_nothing_in_any_order(
    start_pool: StartPool, tmp_path: Path, seed: int
) -> None:
    """At random, beside loads, unloads and cancellations, with files of prefixes and little memory."""
    folder, chance = tmp_path / "models", random.Random(seed)
    for at, (name, kind) in enumerate(
        (("one", "llama"), ("windows", "gemma3_text"), ("states", "qwen3_next"))
    ):
        write_model(folder / name, kind, at)
    write_adapter(folder / "rhymes", folder / "one")
    start = partial(start_pool, model=str(folder / "one"), models_dir=str(folder))
    start = partial(start, sections={"one": {"kv_bits": 8}, "windows": {"kv_bits": 4}})
    alone = start(max_rows=1, prefix_cache_bytes=0)
    busy = start(
        make_sources=make_lookup_drafters, memory_bytes=24 * 2**20, max_rows=6, gate="off",
        prefill_chunk_tokens=32, prefix_cache_dir=str(tmp_path / "prefixes"),
    )  # fmt: skip
    asked: Asked = []
    cancelled: set[str] = set()
    for at in range(60):
        name = chance.choice(["one", "one:rhymes", "windows", "states"])
        what = chance.random()
        if what < 0.1:
            busy.unload(name)
        elif what > 0.8:
            expect(busy, name, [*prompt_of(90, chance.randrange(3)), *prompt_of(60, chance.randrange(50))])
        elif what < 0.2 and asked:
            _, one, answer = chance.choice(asked)
            cancelled.add(one.id)
            answer.cancel()  # type: ignore[attr-defined]
        else:
            shared = prompt_of(90, chance.randrange(3))[: chance.randint(0, 90)]
            prompt = [*shared, *prompt_of(chance.randint(1, 60), chance.randrange(50))]
            one = request(
                prompt, chance.choice([3, 40, 90]), name=f"r{at}",
                temperature=chance.choice([0, 0.8]), seed=at % 4,
            )  # fmt: skip
            asked.append((name, one, ask(busy, name, one, chance.choice([None, 0, -1]))))
    check_ends(asked, cancelled, lambda name, one: [*ask(alone, name, one).finished().tokens])


@pytest.mark.parametrize("num_rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_every_kind_of_cache_gives_its_memory_back(
    start_pool: StartPool, tmp_path: Path, num_rounds: int
) -> None:
    """Sliding windows, a recurrent state and short convolutions, each beside full attention."""
    kinds = ("gemma3_text", "qwen3_next", "lfm2")
    for seed, kind in enumerate(kinds):
        write_model(tmp_path / "kinds" / kind, kind, seed)
    folder = tmp_path / "kinds"
    pool = start_pool(model=str(folder / kinds[0]), models_dir=str(folder))
    check_nothing_is_left(pool, folder, num_rounds, kinds)


def breaking_engine(
    breaking: Callable[[Any], Any], settings: Settings, makers: Makers, inbox: Inbox
) -> GeneratingEngine:
    """Make an engine; that of the model three has a model that breaks."""

    def load_breaking(progress: Any) -> Any:
        loaded = makers.load(progress)
        return replace(loaded, model=breaking(loaded.model)) if loaded.info.name == "three" else loaded

    return GeneratingEngine(settings, replace(makers, load=load_breaking), inbox)


def test_a_failing_step_of_one_model_leaves_the_others(models: Path, tmp_path: Path) -> None:
    make_engine = partial(breaking_engine, Breaking)
    wanted = Settings(model=str(models / "one"), models_dir=str(models))
    pool = Engine(wanted, catalogue=Catalogue(wanted, HubCache(tmp_path)), make_engine=make_engine)
    pool.start()
    good = [request(prompt_of(30, at), max_tokens=40, name=f"good {at}") for at in range(4)]
    answers = [ask(pool, ("one", "three")[at % 2], one) for at, one in enumerate(good)]
    poisoned = ask(pool, "three", request([*prompt_of(10), POISON], name="bad"))
    assert poisoned.failed().kind == "request"
    for at, (one, answer) in enumerate(zip(good, answers, strict=True)):
        assert list(answer.finished().tokens) == answer_of(models / ("one", "three")[at % 2], one)
    assert pool.counts().num_failed_steps >= 1
    pool.stop(drain_s=0)


def test_what_drafters_learned_and_kept_prefixes_are_used_after_a_reload(
    start_pool: StartPool, models: Path, tmp_path: Path
) -> None:
    folder = str(tmp_path / "prefixes")
    pool = start_pool(make_sources=make_lookup_drafters, prefix_cache_dir=folder, draft_type="ngram-mod")
    asked = request(prompt_of(400), max_tokens=60)
    expected = answer_of(models / "one", asked)
    assert list(ask(pool, "one", asked).finished().tokens) == expected
    pool.unload("one").result(60)
    again = ask(pool, "one", asked).finished()
    assert list(again.tokens) == expected
    assert again.usage.num_cached_tokens >= 256
    assert again.usage.drafting.num_accepted > 0
    # Of another model with the same vocabulary too, and it changes none of its answers.
    assert list(ask(pool, "three", asked).finished().tokens) == answer_of(models / "three", asked)


def test_a_model_that_is_known_to_be_broken_takes_no_memory_from_others(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool(memory_bytes=FOR_ONE)
    asked = request(prompt_of(20), max_tokens=10)
    assert ask(pool, "one", asked).finished()
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        pool.acquire("broken").result(60)
    assert pool._loop._residency._memory.loading_bytes == 0
    assert states(pool)["one"] == "loaded"
    assert list(ask(pool, "one", asked).finished().tokens) == answer_of(models / "one", asked)


def test_a_call_to_a_model_that_is_unloaded_meanwhile_ends(start_pool: StartPool) -> None:
    pool = start_pool()
    use = pool.acquire("one").result(60)
    engine, made = use.engine, list[Any]()
    use.end()
    assert isinstance(engine, GeneratingEngine)
    unload = engine.unload

    def call_late() -> None:
        unload()
        made.append(threading.Thread(target=lambda: made.append(call(engine))))
        made[0].start()
        wait_until(lambda: not engine.inbox.is_empty)

    def call(engine: GeneratingEngine) -> str:
        with pytest.raises(SharedTableError) as raised:
            engine.between_steps(lambda: "done")
        return str(raised.value)

    engine.unload = call_late  # type: ignore[method-assign]
    pool.unload("one").result(60)
    made[0].join(10)
    assert made[1:] == ["one was unloaded"]


def test_counts_do_not_fall_when_a_model_in_use_is_unloaded_for_another_and_loaded_again(
    start_pool: StartPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.engine.pool.residency.GRACE_S", 0.0)
    pool = start_pool()
    use = pool.acquire("one").result(60)
    ask(pool, "one", request(prompt_of(20), max_tokens=20)).finished()
    before = pool.counts().gaps_up_to[-1]
    assert before > 0
    engine: Any = use.engine
    assert engine.between_steps(lambda: pool._loop._residency._unload_for(None))
    assert states(pool)["one"] == "unloaded"
    pool.acquire("one").result(60).end()
    assert pool.counts().gaps_up_to[-1] >= before
    use.end()


def test_an_answer_is_kept_though_its_model_is_unloaded_as_it_ends(
    start_pool: StartPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.engine.loop.SLICE_S", 0.0)
    pool = start_pool(prefix_cache_dir=str(tmp_path / "prefixes"))
    answer, unloaded = Answer(), []

    def unload_at_end(event: Any) -> None:
        if isinstance(event, Finished):
            unloaded.append(pool.unload("one"))
        answer(event)

    use = pool.acquire("one").result(60)
    use.engine.submit(request(prompt_of(400), max_tokens=60), unload_at_end)
    use.end()
    answer.finished()
    unloaded[0].result(60)
    again = ask(pool, "one", request(prompt_of(400), max_tokens=1)).finished()
    assert again.usage.num_cached_tokens >= 256


def test_a_section_sets_a_models_context(start_pool: StartPool) -> None:
    pool = start_pool(sections={"three": {"max_context_tokens": 100}})
    use = pool.acquire("three").result(60)
    assert use.engine.info.context_tokens == 100
    use.end()
    assert pool.info.context_tokens == 1024


def test_stopping_answers_what_runs_and_refuses_what_waits(start_pool: StartPool, models: Path) -> None:
    pool = start_pool()
    asked = request(prompt_of(20), max_tokens=100)
    answer = ask(pool, "three", asked)
    wait_until(lambda: bool(answer.text))
    pool.stop(drain_s=60)
    assert list(answer.finished().tokens) == answer_of(models / "three", asked)
    with pytest.raises(ModelLoadError) as raised:
        pool.acquire("one")
    assert raised.value.kind == "draining"


def test_an_adapter_makes_another_model_of_its_base(
    start_pool: StartPool, models: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(models / "one", tmp_path / "models" / "one")).parent
    adapter = write_adapter(folder / "rhymes", folder / "one")
    asked = request(prompt_of(60), max_tokens=30)
    expected = answer_with(folder / "one", adapter, asked)
    assert expected != answer_of(models / "one", asked)
    where = {"model": str(folder / "one"), "models_dir": str(folder)}
    pool = start_pool(**where, prefix_cache_dir=str(tmp_path / "prefixes"))
    assert set(states(pool)) == {"one", "one:rhymes"}
    # The prefixes of one are not those of the other, in memory or on disk.
    for _ in range(2):
        plain, adapted = ask(pool, "one", asked), ask(pool, "one:rhymes", asked)
        assert list(plain.finished().tokens) == answer_of(models / "one", asked)
        assert list(adapted.finished().tokens) == expected
        pool.unload("one:rhymes").result(60)
    with pytest.raises(ModelLoadError, match="no model one:nobody"):
        pool.acquire("one:nobody")


def test_the_adapter_of_the_settings_is_added_to_their_model(
    start_pool: StartPool, models: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "rhymes", models / "one")
    asked = request(prompt_of(60), max_tokens=30)
    pool = start_pool(adapter_path=str(adapter))
    assert list(ask(pool, "one", asked).finished().tokens) == answer_with(models / "one", adapter, asked)
    assert list(ask(pool, "three", asked).finished().tokens) == answer_of(models / "three", asked)
    with pytest.raises(ModelError, match=r"there is no adapter_config\.json"):
        start_pool(adapter_path=str(tmp_path / "nowhere"))


class Fatal(BaseException):
    """What no worker survives."""


class Dying(Breaking):
    """A model whose engine dies of the poison token."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        if (tokens == POISON).any().item():
            raise Fatal
        return super().__call__(tokens, cache)


def test_an_engine_that_dies_takes_only_its_own_requests_along(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Captured log records would keep the arrays on the stack of a fault alive.
    monkeypatch.setattr(logging.getLogger("reprise.engine"), "disabled", True)
    wanted = Settings(model=str(models / "one"), models_dir=str(models))
    make_engine = partial(breaking_engine, Dying)
    pool = Engine(wanted, catalogue=Catalogue(wanted, HubCache(tmp_path)), make_engine=make_engine)
    pool.start()
    asked = request(prompt_of(30), max_tokens=60)
    answer_of(models / "three", asked)
    gc.collect()
    before = pool.counts().active_bytes
    running = ask(pool, "one", asked)
    for _ in range(2):
        assert ask(pool, "three", request([*prompt_of(10), POISON], name="bad")).failed().kind == "engine"
        wait_until(lambda: states(pool)["three"] == "unloaded")
        # It is loaded again for the next request.
        assert list(ask(pool, "three", asked).finished().tokens) == answer_of(models / "three", asked)
    assert list(running.finished().tokens) == answer_of(models / "one", asked)
    assert pool.status().state == "ready"
    for name in ("one", "three"):
        pool.unload(name).result(60)
    pool.acquire("one").result(60).end()
    assert pool.counts().active_bytes == before
    pool.stop(drain_s=0)


def test_a_section_shows_in_the_list_before_its_model_is_loaded(start_pool: StartPool) -> None:
    pool = start_pool(sections={"three": {"max_context_tokens": 100}})
    assert {entry.name: entry.context_tokens for entry in pool.entries()} == {
        "one": 1024,
        "broken": 1024,
        "org/two": 1024,
        "three": 100,
    }


def test_parts_of_a_models_folder_are_no_models(start_pool: StartPool, models: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models / "one", tmp_path / "models" / "one")).parent
    shutil.copytree(models / "three", folder / "one" / "draft")
    pool = start_pool(models_dir=str(folder), model=str(folder / "one"))
    assert set(states(pool)) == {"one"}
    assert pool.find("one/draft") is None


@pytest.mark.parametrize(
    "memory_bytes",
    [FOR_TWO, *(pytest.param(memory, marks=pytest.mark.slow) for memory in (FOR_ONE, 40 * 2**20))],
)
def test_models_together_never_take_more_memory_than_they_are_given(
    start_pool: StartPool, models: Path, memory_bytes: int
) -> None:
    names = ("one", "org/two", "three")
    asked = [request(prompt_of(40 + 90 * at, at), max_tokens=50, name=f"r{at}") for at in range(6)]
    expected = [answer_of(models / names[at % 3], one) for at, one in enumerate(asked)]
    gc.collect()
    mx.clear_cache()
    others = mx.get_active_memory()
    pool = start_pool(memory_bytes=memory_bytes)
    mx.reset_peak_memory()
    answers = [ask(pool, names[at % 3], one) for at, one in enumerate(asked)]
    assert [list(answer.finished().tokens) for answer in answers] == expected
    assert mx.get_peak_memory() - others <= memory_bytes


def test_a_section_gives_a_model_its_draft_model_whose_memory_comes_back_too(
    start_pool: StartPool, models: Path
) -> None:
    asked = request(prompt_of(40), max_tokens=40)
    expected = answer_of(models / "three", asked)
    section = {"draft_model": str(models / "one"), "draft_type": "draft-model", "prefix_cache_bytes": 2**20}
    pool = start_pool(sections={"three": section}, make_sources=make_lookup_drafters)
    ask(pool, "three", asked).finished()
    pool.unload("three").result(60)
    before = pool.counts().active_bytes
    for _ in range(2):
        finished = ask(pool, "three", asked).finished()
        assert list(finished.tokens) == expected
        assert pool.find("three").info.draft_strategy == "none"  # type: ignore[union-attr]
        # The draft model's weights count, too.
        assert pool.counts().active_bytes - before >= 2 * pool.info.weight_bytes
        pool.unload("three").result(60)
        assert pool.counts().active_bytes == before


def test_a_model_whose_files_cannot_be_read_is_an_error_and_others_go_on(
    start_pool: StartPool, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(_catalogue: Catalogue, source: str) -> int:
        raise FileNotFoundError(source)

    pool = start_pool(sections={"three": {"draft_model": str(models / "one"), "draft_type": "draft-model"}})
    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "weight_bytes", vanish)
        with pytest.raises(ModelLoadError, match="three: FileNotFoundError: ") as raised:
            pool.acquire("three").result(60)
        assert raised.value.kind == "not_loadable"
    for name in ("one", "three"):
        assert ask(pool, name, request(prompt_of(20), max_tokens=4)).finished()


def test_memory_comes_back_from_a_process_that_froze_its_objects(start_pool: StartPool) -> None:
    pool = start_pool()
    pool.unload("one").result(60)
    # Of earlier tests, whose arrays count too.
    gc.collect()
    before = pool.counts().active_bytes
    pool.acquire("one").result(60).end()
    with frozen():
        pool.unload("one").result(60)
        assert pool.counts().active_bytes == before
        assert gc.get_freeze_count() > 0


def test_only_as_many_requests_wait_for_a_model_as_it_may_have(start_pool: StartPool) -> None:
    pool = start_pool(max_rows=1, max_queue=2)
    answer = ask(pool, "one", request(prompt_of(20), max_tokens=900))
    # While it is to be unloaded, requests for it wait.
    left = pool.unload("one")
    waiting = [pool.acquire("one") for _ in range(3)]
    with pytest.raises(EngineError, match="3 requests wait for one") as raised:
        pool.acquire("one")
    assert raised.value.code == "queue_full"
    answer.cancel()  # type: ignore[attr-defined]
    left.result(60)
    for future in waiting:
        future.result(60).end()


@pytest.mark.parametrize("is_first", [True, False])
def test_stopping_ends_a_load_that_makes_no_progress(models: Path, tmp_path: Path, *, is_first: bool) -> None:
    begun = threading.Event()
    num_loads = iter([True, *[False] * 9] if not is_first else [False] * 9)

    def make_engine(settings: Settings, makers: Makers, inbox: Inbox) -> GeneratingEngine:
        def load(progress: Any) -> Any:
            if next(num_loads):
                assert makers.load
                return makers.load(progress)
            begun.set()
            while True:
                # Code of a model may catch what it does not know.
                with suppress(Exception):
                    begun.is_set()

        return GeneratingEngine(settings, replace(makers, load=load), inbox)

    wanted = Settings(model=str(models / "one"), models_dir=str(models))
    pool = Engine(wanted, catalogue=Catalogue(wanted, HubCache(tmp_path)), make_engine=make_engine)
    if is_first:
        with ThreadPoolExecutor() as starting:
            started = starting.submit(pool.start)
            assert begun.wait(60)
            pool.stop(drain_s=0)
            with pytest.raises(ModelError, match="the server is stopping"):
                started.result(60)
        return
    pool.start()
    asked = request(prompt_of(20), max_tokens=200)
    running = ask(pool, "one", asked)
    wait_until(lambda: bool(running.text))
    waiting = pool.acquire("three")
    assert begun.wait(60)
    pool.stop(drain_s=60)
    with pytest.raises(ModelLoadError, match="the server is stopping"):
        waiting.result(60)
    assert list(running.finished().tokens) == answer_of(models / "one", asked)


def prefix_bytes(pool: Engine) -> dict[str, int]:
    return {name: status["num_bytes"] for name, status in pool.prefix_status().items()}


def test_idle_models_give_their_prefixes_back_under_memory_pressure(
    start_pool: StartPool, models: Path
) -> None:
    pool = start_pool()
    asked = request(prompt_of(200), temperature=0.8)
    for name in ("one", "org/two"):
        ask(pool, name, asked).finished()
    wait_until(lambda: all(prefix_bytes(pool).values()))
    assert pool.status().memory_pressure == "none"
    # Nobody asks anything, and the watchdog looks.
    pool.pressure.read = lambda: "critical"
    wait_until(lambda: not any(prefix_bytes(pool).values()))
    assert pool.status().memory_pressure == "critical"
    # It is counted once it is done.
    wait_until(lambda: pool.counts().given_back_bytes > 0)
    assert list(ask(pool, "one", asked).finished().tokens) == answer_of(models / "one", asked)


def test_pressure_that_never_ends_holds_up_no_request_for_ever(start_pool: StartPool, models: Path) -> None:
    pool = start_pool(max_rows=4)
    names = ("one", "org/two", "three")
    pool.pressure.read = lambda: "warning"
    pool.pressure.look()
    asked = [
        request(prompt_of(30 + 7 * at, at), max_tokens=30, name=f"r{at}", temperature=0.7, seed=at)
        for at in range(12)
    ]
    answers = [(names[at % 3], one, ask(pool, names[at % 3], one)) for at, one in enumerate(asked)]
    for name, one, answer in answers:
        pool.pressure.look()
        assert list(answer.finished().tokens) == answer_of(models / name, one)


@pytest.mark.parametrize(
    ("serves_several", "section", "said"),
    [
        (True, "org/two", None),
        (True, "org/tow", "; did you mean org/two?"),
        (True, "elsewhere", ""),
        (False, "one", None),
        (False, "noe", "; did you mean one?"),
    ],
)
def test_a_section_that_is_for_no_model_is_told(
    models: Path, serves_several: bool, section: str, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reprise.engine")
    settings = Settings(model=str(models / "one"), models_dir=str(models) if serves_several else None)
    make_engine(settings, sections={section: {"max_rows": 2}})
    expected = [] if said is None else [f'[models."{section}"] is for no model here{said}']
    assert caplog.messages == expected
    assert all((one.levelname == "WARNING") == bool(said) for one in caplog.records)
