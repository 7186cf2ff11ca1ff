"""Energy comes from the machine's counters; without access to them, nothing is measured."""

import sys
from functools import partial
from pathlib import Path

import pytest

from reprise.bench import energy
from reprise.bench.energy import EnergyMeter, read_powermetrics, read_rapl

PRINTED = """\
Machine model: Mac16,8

*** Sampled system activity (Sat Nov 21 10:00:00 2026 +0100) (204.31ms elapsed) ***

**** Processor usage ****

CPU Power: 2000 mW
GPU Power: 18000 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 20000 mW

**** GPU usage ****

GPU Power: 18000 mW

*** Sampled system activity (Sat Nov 21 10:00:00 2026 +0100) (195.69ms elapsed) ***

Combined Power (CPU + GPU + ANE): 10000 mW
"""


def zone(folder: Path, name: str, joules: float = 0.0) -> Path:
    """Write a counter whose range is 1,000 J."""
    folder.mkdir(parents=True)
    for file, text in {"name": name, "max_energy_range_uj": "1000000000"}.items():
        (folder / file).write_text(f"{text}\n")
    count(folder, joules)
    return folder


def count(folder: Path, joules: float) -> None:
    (folder / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")


def test_processors_and_memory_are_added_up_and_nothing_twice(tmp_path: Path) -> None:
    names = {"0": "package-0", "1": "package-1", "2": "psys", "0:0": "core", "0:1": "dram"}
    zones = [zone(tmp_path / f"intel-rapl:{at}", name) for at, name in names.items()]
    counter = read_rapl(tmp_path)
    assert next(counter) == 0.0
    for joules, one in zip((1, 2, 400, 80, 16), zones, strict=True):
        count(one, joules)
    assert next(counter) == pytest.approx(1 + 2 + 16)


def test_a_counter_that_wraps_keeps_adding_up(tmp_path: Path) -> None:
    folder = zone(tmp_path / "intel-rapl:0", "package-0", joules=990.0)
    counter = read_rapl(tmp_path)
    next(counter)
    for joules, total in ((5.0, 15.0), (7.0, 17.0)):
        count(folder, joules)
        assert next(counter) == pytest.approx(total)


def test_a_counter_that_disappears_ends_the_measurement_but_not_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = zone(tmp_path / "intel-rapl:0", "package-0")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "read_rapl", partial(read_rapl, tmp_path))
    with EnergyMeter() as meter:
        assert (meter.read(), meter.source, meter.reason) == (0.0, "processors and memory", None)
        (folder / "energy_uj").unlink()
        assert meter.read() is None
        assert meter.source is None
        assert "No such file" in str(meter.reason)
        assert meter.read() is None


def test_a_machine_without_counters_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "read_rapl", partial(read_rapl, tmp_path))
    meter = EnergyMeter()
    assert (meter.read(), meter.reason) == (None, f"no RAPL counters under {tmp_path}")


def test_counters_that_only_root_may_read_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path / "intel-rapl:0", "package-0")

    def refuse(_: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "read_rapl", partial(read_rapl, tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    meter = EnergyMeter()
    assert (meter.read(), meter.reason) == (None, "[Errno 13] Permission denied (needs root)")


def test_each_sample_of_powermetrics_counts_once_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program = f"import time; print({PRINTED!r}, flush=True); time.sleep(60)"
    counter = read_powermetrics((sys.executable, "-c", program))
    assert [next(counter), next(counter)] == pytest.approx([20.0 * 0.20431 + 10.0 * 0.19569] * 2)
    counter.close()
    assert next(counter, None) is None


def test_powermetrics_that_may_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(PermissionError):
        next(read_powermetrics((sys.executable, "-c", "import sys; sys.exit(1)")))
