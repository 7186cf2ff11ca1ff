"""Costs are measured while nothing else is to be done, kept on disk, and checked at the next start."""

import json
import logging
import threading
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from reprise.config.settings import Settings
from reprise.drafters.base import NO_DRAFT
from reprise.engine.engine import Engine
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.models.loads import Makers
from reprise.engine.speculative.costs import calibration
from reprise.engine.speculative.costs.calibration import Calibration
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.support import ask, make_loaded, oracle, prompt_of, request, wait_until

WIDEST = 9


def step_s(num_rows: int, width: int) -> float:
    return 0.01 * (1 + 0.02 * (num_rows * width - 1))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the shapes measured so far, on a machine whose steps take step_s()."""
    shapes: list[tuple[int, int]] = []

    def take(_rows: Any, num_rows: int, width: int, _vocab_size: int, _is_long: bool) -> float:
        shapes.append((num_rows, width))
        return step_s(num_rows, width)

    monkeypatch.setattr(calibration, "_step_s", take)
    return shapes


def make(folder: Path, **settings: Any) -> Calibration:
    chosen = Settings(calibration_file=str(folder / "costs.json"), max_rows=4, **settings)
    return Calibration(make_loaded("llama"), chosen, Sharing.GROUPS, WIDEST)


def test_costs_are_cautious_until_they_are_measured(tmp_path: Path, measured: list[tuple[int, int]]) -> None:
    calibrated = make(tmp_path)
    assert not calibrated.is_known
    # Twice as long as a plain step at nine tokens, which is far too much for this machine.
    assert calibrated.costs.seconds(1, 9) == pytest.approx(2 * calibrated.costs.seconds(1, 1))
    while not calibrated.is_done:
        before = len(measured)
        calibrated.advance()
        assert len(measured) <= before + 1
    for num_rows in (1, 2, 4):
        for width in (1, 2, 3, 5, 9):
            assert calibrated.costs.seconds(num_rows, width) == pytest.approx(step_s(num_rows, width))


def test_the_next_start_knows_them_and_looks_whether_they_still_hold(
    tmp_path: Path, measured: list[tuple[int, int]]
) -> None:
    make(tmp_path).finish(lambda _: None)
    measured.clear()
    again = make(tmp_path)
    assert again.is_known
    assert again.costs.seconds(4, 9) == pytest.approx(step_s(4, 9))
    again.finish(lambda _: None)
    assert {num_rows for num_rows, _ in measured} == {1}
    # They are measured anew if asked for.
    assert not make(tmp_path, recalibrate=True).is_known


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("factor", "holds"), [(3.0, False), (1.2, True)])
def test_costs_on_disk_that_do_not_hold_are_measured_again(
    factor: float, holds: bool, tmp_path: Path
) -> None:
    make(tmp_path).finish(lambda _: None)
    file = tmp_path / "costs.json"
    kept = json.loads(file.read_text())
    key = next(iter(kept))
    kept[key] = [[r, w, s * (factor if w == 5 else 1), *more] for r, w, s, *more in kept[key]]
    file.write_text(json.dumps(kept))
    wrong = make(tmp_path)
    assert wrong.costs.seconds(1, 5) == pytest.approx(step_s(1, 5) * factor)
    wrong.finish(lambda _: None)
    # Those of one row were measured, and show whether the others can be believed.
    assert wrong.costs.seconds(1, 5) == pytest.approx(step_s(1, 5))
    assert wrong.costs.seconds(4, 5) == pytest.approx(step_s(4, 5) * (factor if holds else 1))
    assert make(tmp_path).costs.seconds(4, 5) == wrong.costs.seconds(4, 5)


def test_guesses_of_earlier_versions_are_dropped(
    tmp_path: Path, measured: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """They filled gaps with a straight line, which they wrote to the file as if it had been measured."""
    caplog.set_level(logging.INFO, logger="reprise.engine")
    make(tmp_path).finish(lambda _: None)
    file = tmp_path / "costs.json"
    kept = json.loads(file.read_text())
    key, plain_s = next(iter(kept)), 0.1683
    kept[key] = [[r, w, plain_s * r * w] for r in (1, 2, 4) for w in (1, 2, 3, 4, 5, 6, 8, 9)]
    file.write_text(json.dumps(kept))
    measured.clear()
    again = make(tmp_path)
    assert not again.is_known
    # All that it knows is a plain step, which it measured.
    assert again.costs.seconds(1, 9) == pytest.approx(2 * step_s(1, 1))
    assert any("guesses of an earlier version" in record.getMessage() for record in caplog.records)
    # Real measurements of that version are believed, without the guesses beside them.
    kept[key] = [[1, 1, 0.1], [1, 2, 0.13], [1, 4, 0.18], [1, 8, 0.36], [2, 1, 0.2]]
    file.write_text(json.dumps(kept))
    again = make(tmp_path)
    assert again.is_known
    assert again.costs.table.measured.keys() == {(1, 1), (1, 2), (1, 4)}


def test_what_takes_long_or_does_not_fit_is_guessed(
    tmp_path: Path, measured: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "MAX_MEASURED_S", 0.011)
    monkeypatch.setattr(calibration, "MAX_MEASURED_STEPS", 1.15)
    calibrated = make(tmp_path)
    while not calibrated.is_done:
        calibrated.advance(lambda rows, _tokens: rows < 4)
    assert {shape for shape in measured if shape[0] == 2} <= {(2, 1), (2, 2), (2, 3), (2, 4)}
    assert not any(num_rows == 4 for num_rows, _ in measured)
    # Guesses continue what was measured, ever more slowly.
    seconds = [calibrated.costs.seconds(1, width) for width in (1, 3, 5, 9)]
    assert seconds[2] - seconds[1] >= (seconds[3] - seconds[2]) / 2 > 0
    assert calibrated.costs.seconds(4, 9) == pytest.approx(step_s(4, 9), rel=0.15)
    kept = json.loads((tmp_path / "costs.json").read_text())
    (key, found), (_, names) = kept.items()
    assert {(rows, width) for rows, width, *_ in found} == set(measured)
    assert names == {key: "llama (float32)"}


@pytest.mark.parametrize("plain_s", [0.002, 0.05, 0.2, 1.0])
def test_a_model_of_any_speed_is_measured(
    plain_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int]] = []

    def take(_rows: Any, num_rows: int, width: int, _vocab_size: int, _is_long: bool) -> float:
        shapes.append((num_rows, width))
        return plain_s * (1 + 0.2 * (num_rows * width - 1))

    monkeypatch.setattr(calibration, "_step_s", take)
    calibrated = make(tmp_path)
    shapes.clear()
    calibrated.finish(lambda _: None)
    # Those that decide come first; long steps are measured fewer times.
    assert shapes[:5] == [(1, 1), (1, 2), (1, 4), (1, 8), (1, 1)]
    is_long = 2.4 * plain_s > calibration.LONG_S
    assert shapes.count((1, 8)) == (calibration.LONG_ROUNDS if is_long else calibration.ROUNDS)
    for num_rows in (1, 2, 4):
        for width in (1, 2, 3, 8):
            expected_s = plain_s * (1 + 0.2 * (num_rows * width - 1))
            assert calibrated.costs.seconds(num_rows, width) == pytest.approx(expected_s)


def test_a_request_waits_for_one_forward_pass_of_a_measurement_at_most(tmp_path: Path) -> None:
    """Between two parts of a measurement a request can be answered, whatever the rows of the shape."""
    forwards = 0

    class Counted:
        def __init__(self, model: Any) -> None:
            self.model = model
            self.layers, self.make_cache = model.layers, partial(make_prompt_cache, model)

        def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
            nonlocal forwards
            forwards += 1
            return self.model(tokens, cache=cache)

    settings = Settings(calibration_file=str(tmp_path / "costs.json"), max_rows=4)
    made = Calibration(make_loaded("llama", Counted), settings, Sharing.GROUPS, WIDEST)
    while not made.is_done:
        before = forwards
        made.advance()
        # Plain steps are measured pipelined, unless they are long.
        assert forwards - before <= calibration.PLAIN_STEPS


def test_a_slow_first_measurement_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps of a shape may take long, as kernels are compiled."""
    seen: set[tuple[int, int]] = set()

    def take(_rows: Any, num_rows: int, width: int, _vocab_size: int, _is_long: bool) -> float:
        is_first = (num_rows, width) not in seen
        seen.add((num_rows, width))
        return step_s(num_rows, width) + is_first

    monkeypatch.setattr(calibration, "_step_s", take)
    calibrated = make(tmp_path)
    calibrated.finish(lambda _: None)
    assert calibrated.costs.seconds(1, 1) == pytest.approx(step_s(1, 1))
    assert calibrated.costs.seconds(4, 9) == pytest.approx(step_s(4, 9))


def test_steps_are_fed_as_many_distinct_tokens_as_text_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mixture of experts, equal tokens touch few experts, and the step would seem too cheap."""
    fed: list[mx.array] = []

    class Watched:
        def __init__(self, model: Any) -> None:
            self.model = model
            self.layers, self.make_cache = model.layers, partial(make_prompt_cache, model)

        def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
            fed.append(tokens)
            logits: mx.array = self.model(tokens, cache=cache)
            # Whatever is fed, all rows would choose the same token.
            return mx.zeros_like(logits)

    monkeypatch.setattr(calibration, "ROUNDS", 1)
    settings = Settings(calibration_file=str(tmp_path / "costs.json"), max_rows=4)
    made = Calibration(make_loaded("gpt_oss", Watched), settings, Sharing.GROUPS, WIDEST)
    fed.clear()
    made.finish(lambda _: None)
    shapes = {(tokens.shape[0], tokens.shape[1]) for tokens in fed}
    assert {(rows, width) for rows in (1, 2, 4) for width in (1, 2, 3, 4, 5, 6, 8, 9)} <= shapes
    for tokens in fed:
        assert len(set(tokens.reshape(-1).tolist())) == tokens.size
    # Nor do plain steps feed one token again and again, or rows have the same prompt.
    plain = [tuple(tokens.reshape(-1).tolist()) for tokens in fed if tokens.shape == (4, 1)]
    assert len(set(plain)) == len(plain) == calibration.PLAIN_STEPS
    prompts = [tuple(tokens[0].tolist()) for tokens in fed if tokens.shape[1] == calibration.CONTEXT_TOKENS]
    assert len(set(prompts[-4:])) == 4


class Silent:
    """A drafter with nothing to say."""

    name = "suffix"

    def open(self, *_: Any) -> None:
        pass

    def propose(self, *_: Any) -> Any:
        return NO_DRAFT

    def observe(self, *_: Any) -> None:
        pass

    def note_verified(self, *_: Any) -> None:
        pass

    def close(self, *_: Any) -> None:
        pass


def test_an_engine_listens_before_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="reprise.engine")
    started, asked, answers = threading.Event(), request(prompt_of(20), 12), []
    num_measured = 0

    def take(_rows: Any, num_rows: int, width: int, _vocab_size: int, _is_long: bool) -> float:
        nonlocal num_measured
        num_measured += 1
        # Two are made before the engine has started. A request arrives during the fifth one.
        if num_measured == 5:
            started.wait()
            answers.append(ask(engine, asked))
        elif num_measured == 6:
            # It was answered before the next one.
            answers.append(answers[0].finished())
        return step_s(num_rows, width)

    monkeypatch.setattr(calibration, "_step_s", take)
    file = tmp_path / "costs.json"
    settings = Settings(calibration_file=str(file), max_rows=2, num_draft_tokens=8, draft_type="suffix")
    sources = DraftSources({"suffix": Silent()}, scored(0.0))
    engine = Engine(settings, Makers(lambda _: make_loaded("llama"), lambda _: sources))
    engine.start()
    try:
        started.set()
        wait_until(lambda: any(record.msg.startswith("measured what steps of") for record in caplog.records))
        assert file.exists()
        assert list(answers[1].tokens) == oracle(make_loaded("llama"), asked)
    finally:
        engine.stop(drain_s=0)
    messages = [record.getMessage() for record in caplog.records]
    assert any("what steps cost is not known yet" in message for message in messages)
    assert any(message.startswith("measured what steps of ") for message in messages)


def test_a_measurement_that_fails_costs_nothing_but_its_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def take(_rows: Any, num_rows: int, width: int, _vocab_size: int, _is_long: bool) -> float:
        calls.append(width)
        if len(calls) > 4:
            raise RuntimeError("no memory")
        return step_s(num_rows, width)

    monkeypatch.setattr(calibration, "_step_s", take)
    settings = Settings(calibration_file=None, draft_type="suffix")
    sources = DraftSources({"suffix": Silent()}, scored(0.0))
    engine = Engine(settings, Makers(lambda _: make_loaded("llama"), lambda _: sources))
    engine.start()
    try:
        wait_until(lambda: any("cannot measure" in record.getMessage() for record in caplog.records))
        asked = request(prompt_of(20), 12)
        assert list(ask(engine, asked).finished().tokens) == oracle(make_loaded("llama"), asked)
    finally:
        engine.stop(drain_s=0)
