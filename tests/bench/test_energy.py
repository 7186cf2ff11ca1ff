"""Energy comes from the machine's counters; without access to them, nothing is measured."""

import sys
from pathlib import Path

import pytest

from bench import energy
from bench.energy import EnergyMeter, PowerMetrics, RaplZone, rapl_zones, read_samples

PRINTED = """\
Machine model: Mac16,8
OS version: 24G90

*** Sampled system activity (Sat Nov 21 10:00:00 2026 +0100) (204.31ms elapsed) ***

**** Processor usage ****

E-Cluster Online: 100%
CPU Power: 2000 mW
GPU Power: 18000 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 20000 mW

**** GPU usage ****

GPU HW active frequency: 1578 MHz
GPU Power: 18000 mW

*** Sampled system activity (Sat Nov 21 10:00:00 2026 +0100) (195.69ms elapsed) ***

Combined Power (CPU + GPU + ANE): 10000 mW
"""


def zone(folder: Path, name: str, joules: float = 0.0, range_j: float = 1000.0) -> Path:
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_j * 1e6:.0f}\n")
    return folder


def test_processors_and_memory_are_added_up_and_nothing_twice(tmp_path: Path) -> None:
    for at, name in enumerate(["package-0", "package-1", "psys"]):
        zone(tmp_path / f"intel-rapl:{at}", name)
    zone(tmp_path / "intel-rapl:0:0", "core")
    zone(tmp_path / "intel-rapl:0:1", "dram")
    (tmp_path / "intel-rapl").mkdir()
    assert [folder.name for folder in rapl_zones(tmp_path)] == [
        "intel-rapl:0",
        "intel-rapl:0:1",
        "intel-rapl:1",
    ]


def test_a_counter_that_wraps_keeps_adding_up(tmp_path: Path) -> None:
    folder = zone(tmp_path / "zone", "package-0", joules=990.0)
    counter = RaplZone(folder)
    (folder / "energy_uj").write_text("5000000")
    assert counter.joules() == pytest.approx(15.0)
    (folder / "energy_uj").write_text("7000000")
    assert counter.joules() == pytest.approx(17.0)


def test_a_counter_that_disappears_ends_the_measurement_but_not_the_benchmark(tmp_path: Path) -> None:
    folder = zone(tmp_path / "zone", "package-0")
    meter = EnergyMeter([RaplZone(folder)])
    assert meter.read() == 0.0
    assert meter.source == "package-0"
    (folder / "energy_uj").unlink()
    assert meter.read() is None
    assert meter.source is None
    assert "stopped working" in str(meter.reason)
    assert meter.read() is None


def test_a_machine_without_counters_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "rapl_zones", list)
    monkeypatch.setattr(energy, "NVIDIA_DRIVER", tmp_path / "nowhere")
    with EnergyMeter() as meter:
        assert meter.read() is None
        assert meter.reason == "no RAPL counters under /sys/class/powercap"


def test_counters_that_only_root_may_read_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> RaplZone:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "rapl_zones", lambda: [tmp_path])
    monkeypatch.setattr(energy, "RaplZone", refuse)
    monkeypatch.setattr(energy, "NVIDIA_DRIVER", tmp_path / "nowhere")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    meter = EnergyMeter()
    assert meter.read() is None
    assert meter.reason == "no permission to read RAPL (needs root)"


def test_each_sample_of_powermetrics_counts_once() -> None:
    assert list(read_samples(PRINTED.splitlines())) == pytest.approx([20.0 * 0.20431, 10.0 * 0.19569])


def test_powermetrics_is_read_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program = f"import time; print({PRINTED!r}, flush=True); time.sleep(60)"
    counter = PowerMetrics((sys.executable, "-c", program))
    assert counter.joules() > 4.0
    counter.close()
    with pytest.raises(OSError, match="has ended"):
        counter.joules()


def test_powermetrics_that_may_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(PermissionError):
        PowerMetrics((sys.executable, "-c", "import sys; sys.exit(1)"))


def test_a_gpu_that_no_counter_covers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "rapl_zones", lambda: [zone(tmp_path / "zone", "package-0")])
    monkeypatch.setattr(energy, "NVIDIA_DRIVER", tmp_path)
    assert EnergyMeter().source == "package-0; not included: NVIDIA GPUs"
