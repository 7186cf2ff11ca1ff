"""The prefix files of a rank that is not rank 0."""

from concurrent.futures import Future
from pathlib import Path

import mlx.core as mx
import pytest

from reprise.engine.distributed import leader
from reprise.engine.distributed.model_parts import PartFiles, Reading
from reprise.engine.kv_cache.prefix_cache.disk import PrefixFileError, join_contents

FIRST, SECOND = (f"{digit * 40}.prefix" for digit in "12")


def keys(start: int, end: int) -> list[mx.array]:
    return [mx.arange(start, end, dtype=mx.float32).reshape(1, 1, -1, 1)]


def write_two(folder: Path) -> None:
    files = PartFiles(folder, "a")
    files.save(FIRST, keys(0, 5), [])
    files.save(SECOND, keys(3, 9), [mx.array([7.0]), None])
    files.close()


def test_what_is_saved_is_read_after_a_restart(tmp_path: Path) -> None:
    write_two(tmp_path)
    files = PartFiles(tmp_path, "a")
    # The second begins inside the first.
    cut, state = join_contents(files.begin_read([FIRST, SECOND]).result(), [0, 3], [3, 8])
    (keys_of_both,) = cut(1, 7)
    assert keys_of_both.flatten().tolist() == [1, 2, 3, 4, 5, 6]
    kept, empty = state
    assert (kept is not None and kept.tolist(), empty) == ([7.0], None)


def test_a_rank_says_that_its_files_are_still_being_read() -> None:
    reading: Reading = Future()
    with pytest.raises(TimeoutError, match="still being read"):
        leader.OPERATIONS["await_parts"](reading, 0.01)
    reading.set_result([])
    leader.OPERATIONS["await_parts"](reading, 0.01)


def test_files_of_other_weights_are_not_read(tmp_path: Path) -> None:
    write_two(tmp_path)
    reading = PartFiles(tmp_path, "b").begin_read([FIRST])
    with pytest.raises(PrefixFileError, match="other weights"):
        reading.result()


def test_only_what_rank_0_knows_is_kept_and_others_files_are_left(tmp_path: Path) -> None:
    write_two(tmp_path)
    PartFiles(tmp_path, "b").keep([])
    assert {file.name for file in tmp_path.iterdir()} == {FIRST, SECOND}
    files = PartFiles(tmp_path, "a")
    files.keep([SECOND])
    assert {file.name for file in tmp_path.iterdir()} == {SECOND}
    files.drop(SECOND)
    files.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../x", "x.prefix", f"/{FIRST}", f"{FIRST}\n"])
def test_a_name_that_is_none_of_a_prefix_file_is_refused(name: str, tmp_path: Path) -> None:
    files = PartFiles(tmp_path, "a")
    for call in (files.drop, lambda one: files.begin_read([one]), lambda one: files.save(one, [], [])):
        with pytest.raises(ValueError, match="is no name of a prefix file"):
            call(name)
