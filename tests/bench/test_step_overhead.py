"""The table of what sampling costs has a figure for every setting."""

import pytest

from bench import step_overhead


def test_every_setting_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_overhead, "REPEAT_S", 0.0)
    step_overhead.main(["--vocabularies", "300", "--rows", "1", "3"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert [name for name, *_ in rows] == list(step_overhead.SETTINGS)
    assert all(int(one) > 0 and int(three) > 0 for *_, one, three in rows)


def test_memory_is_measured_with_mlx_running_ahead_and_not(capsys: pytest.CaptureFixture[str]) -> None:
    step_overhead.main(["--memory", "--vocabularies", "100000", "--rows", "2", "--", "greedy", "top_p"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    cells = [[float(one) for one in line.strip("│ ").split("│")[-1].split("/")] for line in lines]
    (_, greedy), (ahead, top_p) = cells
    assert greedy < 2.0 < top_p <= ahead < 9.0


def test_an_unknown_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step_overhead.main(["top_q"])
    assert "unknown settings: top_q" in capsys.readouterr().err
