"""The table of chunk sizes has a row for every size, and computes the whole prompt with each."""

import pytest

from bench import prefill_chunks
from tests.engine.support import make_model, prompt_of


def test_every_size_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    prefill_chunks.main(["--prompt-tokens", "40", "--chunks", "16", "64", "--rounds", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert [row[0] for row in rows] == ["16", "64"]
    assert all(float(speed) > 0 for _, speed, *_ in rows)


def test_the_last_chunk_may_be_shorter() -> None:
    found = prefill_chunks.measure(make_model("llama"), prompt_of(40), 16)
    assert found.num_tokens == 40
    assert len(found.seconds) == 3
