"""Acceptance rates on disk: found again by the next run, where they weigh less than what it sees itself."""

from pathlib import Path

import pytest

from reprise.config.settings import Settings
from reprise.engine.speculative import acceptance
from reprise.engine.speculative.acceptance import GLOBAL_DECAY, AcceptanceCounts

KEY = "suffix", 3


def learned(num_right: int, num_wrong: int) -> AcceptanceCounts:
    counts = AcceptanceCounts(GLOBAL_DECAY)
    for _ in range(num_wrong):
        counts.add(KEY, 0, 1)
    counts.add(KEY, num_right, 0)
    return counts


def restored(file: Path) -> AcceptanceCounts:
    counts = AcceptanceCounts(GLOBAL_DECAY)
    acceptance.restore(counts, file)
    return counts


def test_a_rate_is_known_again_in_the_next_run(tmp_path: Path) -> None:
    counts = learned(150, 50)
    acceptance.save(counts, tmp_path / "file")
    again = restored(tmp_path / "file")
    assert again.rate(KEY, 0.1, 0.0) == pytest.approx(counts.rate(KEY, 0.1, 0.0))


def test_a_rate_that_no_longer_holds_is_given_up_within_sixty_tokens(tmp_path: Path) -> None:
    acceptance.save(learned(10_000, 0), tmp_path / "file")
    again = restored(tmp_path / "file")
    for _ in range(60):
        again.add(KEY, 0, 1)
    assert again.rate(KEY, 0.9, 0.0) < 0.35


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", '{"suffix": 3}', '{"suffix": [[1, 2]]}', '{"a": [[0, 2, 1]]}',
        '{"suffix": [[1e999, 1, 1]]}', '{"suffix": [[1, 1, 1e999]]}',
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    assert not restored(tmp_path / "file").counts


def test_models_have_files_of_their_own_and_none_without_a_folder(tmp_path: Path) -> None:
    settings = Settings(prefix_cache_dir=str(tmp_path))
    files = {acceptance.find_file(settings, name, "v") for name in ("a", "../a")}
    assert len(files) == 2
    assert {file.parent for file in files if file} == {tmp_path}
    assert acceptance.find_file(Settings(), "a", "v") is None
