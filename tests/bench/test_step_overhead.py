"""The table of what sampling costs has a figure for every setting."""

import pytest

from bench import step_overhead


def test_every_setting_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_overhead, "REPEAT_S", 0.0)
    step_overhead.main(["--vocabularies", "300", "--rows", "1", "3"])
    lines = capsys.readouterr().out.splitlines()
    for name in step_overhead.SETTINGS:
        [line] = [line for line in lines if f" {name} " in line and "300" in line]
        *_, one, three = [cell.strip() for cell in line.strip("│").split("│")]
        assert int(one) > 0
        assert int(three) > 0


def test_an_unknown_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step_overhead.main(["top_q"])
    assert "unknown settings: top_q" in capsys.readouterr().err
