"""Under memory pressure cached prefixes are given back, and every request is answered as it is alone."""

import logging
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.repetition import score_in_slices
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.memory import pressure as module
from reprise.engine.memory.pressure import LEVELS, MAX_LOOKS, MemoryPressure, read_level
from reprise.engine.speculative.proposers import DraftSources
from tests.engine.driven import Driven
from tests.engine.memory.test_budget import loaded_wide
from tests.engine.support import make_loaded, oracle, prompt_of, request

NUM_SESSIONS, NUM_TURNS, ANSWER_TOKENS = 8, 3, 24
MACHINE_BYTES = 24 * 2**30 // 512
"""All sizes are smaller by about as much as a machine of 24 GiB. The last turns together do not fit."""


@dataclass
class Held:
    """A model that holds prefixes."""

    prefix_bytes: int
    weight_bytes: int = 0
    shared: Any = None

    @property
    def held_bytes(self) -> int:
        return self.prefix_bytes

    def give_up(self, num_bytes: int) -> int:
        given = min(num_bytes, self.prefix_bytes)
        self.prefix_bytes -= given
        return given


@dataclass
class Pressed:
    """Memory pressure whose level a test sets."""

    pressure: MemoryPressure
    level: module.Level = "none"

    def set(self, level: module.Level) -> None:
        """Set the level, and let it be looked at."""
        self.level = level
        self.pressure.look()


def pressed(wake: Callable[[], None] = lambda: None) -> Pressed:
    made = Pressed(MemoryPressure(wake))
    made.pressure.read = lambda: made.level
    return made


def psi(last_10_s: str) -> str:
    return f"avg10={last_10_s} avg60=90.00 avg300=0.00 total=7"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (f"some {psi('0.00')}\nfull {psi('0.00')}", "none"),
        (f"some {psi('10.00')}\nfull {psi('9.99')}", "warning"),
        (f"some {psi('55.10')}\nfull {psi('12.00')}", "critical"),
        (f"some {psi('55.10')}", "warning"),
        ("", "none"),
        ("some", "none"),
        ("some avg10=x", "none"),
        ("\xff", "none"),
        (None, "none"),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such file")
def test_linux_tells_its_level(
    text: str | None, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PSI_FILE", tmp_path / "memory")
    if text is not None:
        (tmp_path / "memory").write_text(text)
    assert read_level() == level


@pytest.mark.mac
@pytest.mark.skipif(sys.platform != "darwin", reason="the level is macOS's")
def test_a_mac_tells_its_level() -> None:
    told = subprocess.run(
        ["sysctl", "-n", "kern.memorystatus_vm_pressure_level"], capture_output=True, text=True, check=True
    )
    assert read_level() == {"1": "none", "2": "warning", "4": "critical"}[told.stdout.strip()]


def test_half_is_given_back_at_each_look_and_all_if_it_is_critical_models_in_their_order() -> None:
    idle, busy, without = Held(600), Held(400), Held(0)
    woken: list[None] = []
    one = pressed(lambda: woken.append(None))

    def held() -> tuple[int, int]:
        if one.pressure.is_pending:
            one.pressure.respond([without, idle, busy])
        return idle.prefix_bytes, busy.prefix_bytes

    one.set("none")
    assert (held(), len(woken)) == ((600, 400), 0)
    one.set("warning")
    assert (held(), held(), len(woken)) == ((100, 400), (100, 400), 1)
    one.set("warning")
    assert held() == (0, 250)
    one.set("critical")
    assert held() == (0, 0)
    idle.prefix_bytes = 1
    one.set("warning")
    assert held() == (0, 0)
    idle.prefix_bytes = 500
    one.set("none")
    assert held() == (500, 0)
    assert one.pressure.given_back_bytes >= 1001


def test_pressure_without_end_has_an_effect_for_a_while_and_each_is_logged_once_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reprise.engine")
    driven = Driven(make_loaded("llama"))
    budget, one = driven.worker.queue.memory_budget, pressed()

    def look(level: module.Level) -> bool:
        one.set(level)
        one.pressure.respond([budget])
        return budget.is_tight

    assert [look("warning") for _ in range(MAX_LOOKS + 5)] == [True] * (MAX_LOOKS - 1) + [False] * 6
    # What is only read ahead still waits, also of a model that was loaded meanwhile.
    assert budget.lacks_memory
    loaded_late = Driven(make_loaded("llama")).worker.queue.memory_budget
    one.set("warning")
    assert one.pressure.is_pending
    one.pressure.respond([budget, loaded_late])
    assert (loaded_late.lacks_memory, loaded_late.is_tight) == (True, False)
    # It becomes worse: that has an effect of its own, but not each time that it does.
    assert [look(level) for level in ("critical", "warning")] == [True, True]
    tight = [look(level) for _ in range(MAX_LOOKS) for level in ("critical", "warning")]
    assert tight == [True] * (MAX_LOOKS - 3) + [False] * (MAX_LOOKS + 3)
    assert [look(level) for level in ("none", "warning", "none")] == [False, True, False]
    assert not budget.lacks_memory
    said = [line.getMessage().split(":")[0] for line in caplog.records]
    lasts = f"memory pressure lasts after {MAX_LOOKS} s"
    assert said == [
        *("memory pressure (warning)", lasts, "memory pressure (critical)", lasts),
        *("memory pressure (warning)", "memory pressure is over"),
    ]


def turn(session: int, at: int, prompt: tuple[int, ...]) -> GenerationRequest:
    return request(
        prompt, name=f"{session}.{at}", max_tokens=ANSWER_TOKENS, temperature=0.9, seed=session,
        logit_bias=((2, -100.0),),
    )  # fmt: skip


def follow(session: int, at: int, prompt: tuple[int, ...], answer: list[int]) -> tuple[int, ...]:
    """Return the prompt of a session's next turn: the last one, its answer, and new tokens."""
    return (*prompt, *answer, *prompt_of(40 + 5 * session, 10 * session + at))


@cache
def alone(session: int) -> list[list[int]]:
    """Return a session's answers by the plain loop."""
    prompt, answers = tuple(prompt_of(90 + 7 * session, session)), []
    for at in range(NUM_TURNS):
        answers.append(oracle(loaded_wide(), turn(session, at, prompt)))
        prompt = follow(session, at, prompt, answers[-1])
    return answers


@pytest.mark.parametrize(
    ("seed", "drafts"),
    [
        (0, False),
        (1, True),
        *(pytest.param(seed, bool(seed % 2), marks=pytest.mark.slow) for seed in range(2, 12)),
    ],
)
def test_eight_sessions_in_sixty_percent_of_the_memory_are_answered_as_each_alone_whenever_it_is_pressed(
    seed: int, drafts: bool
) -> None:
    chosen, one = random.Random(seed), pressed()
    loaded, memory_bytes = loaded_wide(), int(0.6 * MACHINE_BYTES)

    def make_sources(vocabulary: str) -> DraftSources:
        return DraftSources(make_drafters(Settings(), vocabulary), score_in_slices)

    before = mx.get_active_memory() - loaded.info.weight_bytes
    driven = Driven(
        loaded, make_sources if drafts else None, memory_bytes=memory_bytes, max_rows=NUM_SESSIONS
    )
    budget = driven.worker.queue.memory_budget
    mx.reset_peak_memory()
    answers: list[list[list[int]]] = [[] for _ in range(NUM_SESSIONS)]
    asked = {s: turn(s, 0, tuple(prompt_of(90 + 7 * s, s))) for s in range(NUM_SESSIONS)}
    for each in asked.values():
        driven.ask(each)
    num_pressed = most = 0
    while driven.worker.has_work:
        if chosen.random() < 0.1:
            one.set(chosen.choice(LEVELS))
            one.pressure.respond([budget])
            num_pressed += one.level != "none"
        num_before = len(driven.worker.running)
        driven.worker.step()
        most = max(most, len(driven.worker.running))
        # Those that run go on; nothing begins beside them.
        assert not budget.is_tight or len(driven.worker.running) <= max(1, num_before)
        for session, of_turn in list(asked.items()):
            if (answer := driven.answers[of_turn.id]).events and answer.events[-1].is_terminal:
                answers[session].append(list(answer.finished().tokens))
                del asked[session]
                if (at := len(answers[session])) < NUM_TURNS:
                    prompt = follow(session, at - 1, of_turn.prompt, answers[session][-1])
                    asked[session] = turn(session, at, prompt)
                    driven.ask(asked[session])
    assert mx.get_peak_memory() - before <= memory_bytes
    assert answers == [alone(session) for session in range(NUM_SESSIONS)]
    assert num_pressed > 5
    assert most > 1
    assert one.pressure.given_back_bytes > 0


def test_a_prefix_that_was_given_back_is_read_from_its_file(tmp_path: Path) -> None:
    driven = Driven(make_loaded("llama"), prefix_cache_dir=str(tmp_path))
    prompt = tuple(prompt_of(300, 1))
    driven.ask(turn(0, 0, prompt))
    driven.finish()
    one, budget = pressed(), driven.worker.queue.memory_budget
    kept = budget.prefix_bytes
    one.set("critical")
    one.pressure.respond([budget])
    assert kept > 0
    assert budget.prefix_bytes == 0
    answer = driven.ask(turn(0, 1, (*prompt, *prompt_of(20, 2))))
    driven.finish()
    assert answer.finished().usage.num_cached_tokens >= 256
    driven.worker.queue.prefixes.close()


def test_a_request_that_waits_is_begun_when_nothing_runs_or_the_pressure_ends() -> None:
    driven, one = Driven(make_loaded("llama")), pressed()
    budget = driven.worker.queue.memory_budget
    one.set("critical")
    one.pressure.respond([budget])
    first, *others = [driven.ask(turn(s, 0, tuple(prompt_of(20, s)))) for s in range(4)]
    driven.step_until(lambda: first.events and first.events[-1].is_terminal)  # type: ignore[arg-type]
    assert not any(other.events for other in others)
    driven.step_until(lambda: len(driven.worker.members) == 1)
    one.set("none")
    one.pressure.respond([budget])
    driven.step_until(lambda: len(driven.worker.members) == 3)
    driven.finish()
    assert all(len(other.finished().tokens) == ANSWER_TOKENS for other in others)
