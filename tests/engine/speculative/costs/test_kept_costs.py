"""What steps were learned to cost is kept, read as a guess at the next start, and never breaks one."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reprise.config.settings import Settings, costs_file
from reprise.drafters.base import Draft
from reprise.engine.engine import Engine
from reprise.engine.generating import generating_engine as generating
from reprise.engine.interface.models import ModelInfo
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.costs.kept_costs import METAL_QUANTISED, make_costs, read_ratios, write_ratios
from reprise.engine.speculative.costs.step_costs import KEPT_PATIENCE, StepCosts
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.speculative.costs.test_bound import Coin
from tests.engine.support import ask, make_loaded, prompt_of, request, wait_until

INFO = make_loaded("llama").info
METAL = replace(INFO, device="Apple M4 Pro (Metal)", dtype="4-bit")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of costs, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return costs_file()


def small(**more: Any) -> Settings:
    return Settings(max_rows=4, num_draft_tokens=8, **more)


def made(settings: Settings, info: ModelInfo = INFO) -> StepCosts:
    return make_costs(info, settings, batched=True)


def teach(costs: StepCosts) -> None:
    """Let plain steps take 0.2 s, those of four and nine tokens 1.5 and 2 times that, of two rows more."""
    for _ in range(40):
        costs.observe_plain(1, 0.2)
        costs.observe_plain(2, 0.3)
        costs.observe_wide([4], 0.3)
        costs.observe_wide([9], 0.4)
        costs.observe_wide([9, 9], 0.9)


def test_before_any_step_a_plain_one_takes_no_time_and_eight_tokens_another() -> None:
    costs = made(small())
    assert costs.seconds(1, 1) < 1e-5
    assert costs.price(1, 9).ratio == pytest.approx(2.0)
    assert costs.widths == [1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize(
    ("info", "is_published"),
    [(METAL, True), (replace(METAL, dtype="bfloat16"), False), (replace(METAL, device="CPU"), False)],
)
def test_with_quantised_weights_on_metal_the_published_costs_are_believed(
    info: ModelInfo, is_published: bool
) -> None:
    costs = made(small(), info)
    for width, ratio in METAL_QUANTISED[1:6]:
        expected = ratio if is_published else 1 + (width - 1) / 8
        assert costs.price(1, width).ratio == pytest.approx(expected)
    assert costs.price(1, 8).describe().endswith("(a guess)")


@pytest.mark.parametrize("first", ["a plain step", "a verification step"])
def test_the_first_step_shows_how_long_a_plain_one_takes(first: str) -> None:
    costs = made(small(), METAL)
    if first == "a verification step":
        costs.observe_wide([4], 0.2 * 1.43)
    else:
        costs.observe_plain(1, 0.2)
    assert costs.seconds(1, 1) == pytest.approx(0.2, rel=0.01)
    assert costs.price(1, 4).ratio == pytest.approx(1.43, rel=0.01)


def test_what_was_learned_is_a_guess_at_the_next_start(file: Path) -> None:
    settings = small()
    costs = made(settings)
    write_ratios(costs, INFO, settings)
    assert not file.exists()
    teach(costs)
    write_ratios(costs, INFO, settings)
    assert read_ratios(INFO, settings) == {
        (1, 4): pytest.approx(1.5, rel=0.05),
        (1, 9): pytest.approx(2.0, rel=0.05),
        (2, 9): pytest.approx(3.0, rel=0.05),
    }
    again = made(settings)
    for shape in ((1, 4), (1, 9), (2, 9)):
        assert again.price(*shape).ratio == pytest.approx(costs.price(*shape).ratio, rel=0.001)
        assert not again.price(*shape).is_seen
        # Trials of what is known made the first answer after a restart a tenth slower.
        assert not any(again.is_trial_due(*shape) for _ in range(KEPT_PATIENCE))
        # It may be wrong, as when something else ran beside.
        assert again.is_trial_due(*shape)
    assert again.is_trial_due(1, 6)


def test_what_no_step_has_refuted_is_kept_on() -> None:
    settings = small()
    teach(costs := made(settings))
    write_ratios(costs, INFO, settings)
    again = made(settings)
    again.observe_plain(1, 0.1)
    again.observe_wide([4], 0.15)
    write_ratios(again, INFO, settings)
    assert read_ratios(INFO, settings).keys() == {(1, 4), (1, 9), (2, 9)}
    again.observe_wide([2], 0.12)
    for widths in ([9], [9, 9]):
        again.observe_wide(widths, 10.0)
    write_ratios(again, INFO, settings)
    assert read_ratios(INFO, settings)[1, 9] > 50


def test_two_guesses_that_real_steps_refute_discredit_the_others() -> None:
    settings = small()
    straight = {(1, width): float(width) for width in (2, 3, 4, 5, 6, 8, 9)}
    costs = made(settings)
    costs.table.guesses |= straight
    costs.observe_plain(1, 1.0)
    costs.observe_wide([9], 1.5)
    assert costs.price(1, 6).ratio == pytest.approx(6.0)
    costs.observe_wide([4], 1.2)
    assert not costs.table.guesses
    assert costs.price(1, 6).ratio < 1.5


@pytest.mark.parametrize("other", [replace(INFO, num_parameters=5), replace(INFO, device="another")])
def test_costs_are_of_one_model_and_machine_and_others_stay(other: ModelInfo, file: Path) -> None:
    settings = small()
    teach(costs := made(settings))
    for info in (INFO, other, INFO):
        write_ratios(costs, info, settings)
    kept = json.loads(file.read_text())
    assert [entry["model"] for entry in kept.values()] == ["llama (float32)"] * 2
    assert read_ratios(INFO, settings) == read_ratios(other, settings)
    assert read_ratios(replace(other, num_layers=99), settings) == {}
    assert read_ratios(INFO, replace(settings, kv_bits=4)) == {}
    assert read_ratios(INFO, replace(settings, keeps_costs=False)) == {}


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {"ratios": 5},
        {"ratios": [[1, 4]]},
        {"ratios": [[1, 4, "much"]]},
        {"ratios": [[1, 4, None]]},
        {"ratios": [[1, 4, 0.0]]},
        {"ratios": [[1, 4, float("nan")]]},
        {"ratios": [[1, 4, 1e300]]},
        {"ratios": [[float("inf"), 4, 2.0]]},
        {"ratios": [[0, 4, 2.0]]},
        {"ratios": [[1, 1, 2.0]]},
        [[1, 1, 0.1], [1, 2, 0.2]],
    ],
)
def test_a_file_that_is_wrong_breaks_no_start(
    entry: Any, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = small()
    teach(costs := made(settings))
    write_ratios(costs, INFO, settings)
    (key,) = json.loads(file.read_text())
    for text in (json.dumps({key: entry}), "{", "5", "\x00"):
        file.write_text(text)
        assert made(settings).price(1, 9).ratio == pytest.approx(2.0)
    assert any("unusable for this model" in record.getMessage() for record in caplog.records)
    write_ratios(costs, INFO, settings)
    assert read_ratios(INFO, settings).keys() == {(1, 4), (1, 9), (2, 9)}


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    settings = Settings()
    teach(costs := made(settings))
    write_ratios(costs, INFO, settings)
    assert any("could not be kept" in record.getMessage() for record in caplog.records)


class Sure(Coin):
    """Drafts the answer's own tokens."""

    def propose(self, query: Any) -> Draft:
        self.chance = 1.0
        return super().propose(query)


@contextmanager
def running(settings: Settings, drafter: Coin) -> Iterator[Engine]:
    sources = DraftSources({"suffix": drafter}, scored(1.0))
    engine = Engine(settings, Makers(lambda _: make_loaded("llama"), lambda _: sources))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain_s=0)


def test_an_engine_keeps_what_it_learned_in_quiet_moments_and_at_its_end(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="reprise.engine")
    settings, drafter = small(draft_type="suffix"), Sure(1.0)
    asked = request(prompt_of(20), 60)
    with running(settings, drafter) as engine:
        drafter.answers[asked.prompt] = []
        drafter.answers[asked.prompt] = list(ask(engine, asked).finished().tokens)
        ask(engine, asked).finished()
        assert not file.exists(), "less than a minute has passed"
    first = read_ratios(engine.info, settings)
    assert first
    file.unlink()
    monkeypatch.setattr(generating, "KEEP_COSTS_EVERY_S", 0.0)
    with running(settings, drafter) as engine:
        ask(engine, asked).finished()
        wait_until(file.exists)
