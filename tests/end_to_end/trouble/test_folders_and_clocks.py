"""Two servers on one folder, a folder that only can be read, a clock that jumps: answers are the same."""

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.conftest import FROM_CHECKOUT, started
from tests.end_to_end.trouble.test_full_disk import answer

pytestmark = pytest.mark.slow
PROMPTS = [f"{number}. The lantern in the hall is red and large. " * 40 for number in range(3)]
YEARS = 10 * 365 * 24 * 3600
JUMPING = """
import sys, time
from pathlib import Path
now, offset = time.time, Path(sys.argv.pop(1))
time.time = lambda: now() + float(offset.read_text() or 0)
from reprise.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def expected(server_url: str) -> list[str]:
    return [answer(server_url, prompt)[0] for prompt in PROMPTS]


@contextmanager
def serving(
    folder: Path, command: tuple[str, ...] = FROM_CHECKOUT, *, keeps_prefixes: bool = True
) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that keeps all in a folder and has to exit with 0, and what it prints."""
    flags = ("--prefix-cache-dir", str(folder / "prefixes")) if keeps_prefixes else ()
    with started(folder, *flags, command=command) as (url, printed, process):
        yield url, printed
        process.terminate()
        assert process.wait(60) == 0, "".join(printed)
    assert "Traceback" not in "".join(printed)


def answers(url: str) -> list[str]:
    return [answer(url, prompt)[0] for prompt in PROMPTS]


def check_kept(folder: Path, expected: list[str]) -> None:
    """What the files hold is right: another server finds some of it, and answers the same."""
    with serving(folder) as (url, printed):
        found = [answer(url, prompt) for prompt in PROMPTS]
    assert [text for text, _ in found] == expected
    assert any(cached for _, cached in found), "".join(printed)
    assert "damaged" not in "".join(printed)
    assert not [path for path in folder.rglob("*") if path.name.endswith(".new")]


def test_two_servers_on_one_folder_answer_as_each_alone(tmp_path: Path, expected: list[str]) -> None:
    with serving(tmp_path) as (first, _), serving(tmp_path) as (second, _), ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            assert list(threads.map(answers, (first, second))) == [expected, expected]
    check_kept(tmp_path, expected)


def test_a_server_that_may_not_write_answers_the_same_or_says_at_once_that_it_cannot(
    tmp_path: Path, expected: list[str]
) -> None:
    with serving(tmp_path) as (url, _):
        assert answers(url) == expected
    # Who is root may write everywhere, unless that is taken away.
    dropped = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere")
    folders = [path for path in (tmp_path, *tmp_path.rglob("*")) if path.is_dir()]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for path in folders:
        path.chmod(0o555)
    for path in before:
        path.chmod(0o444)
    try:
        command = (*dropped, *FROM_CHECKOUT) if os.geteuid() == 0 else FROM_CHECKOUT
        with serving(tmp_path, command, keeps_prefixes=False) as (url, _):
            assert answers(url) == expected
        with pytest.raises(AssertionError, match=r"reprise: --prefix-cache-dir .*: Permission denied"):
            serving(tmp_path, command).__enter__()
    finally:
        for path in folders:
            path.chmod(0o755)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_clock_that_jumps_changes_no_answer(tmp_path: Path, expected: list[str]) -> None:
    offset = tmp_path / "offset"
    offset.write_text("0")
    with serving(tmp_path, (sys.executable, "-c", JUMPING, str(offset))) as (url, _):
        for jump in (0, YEARS, -YEARS, 0):
            offset.write_text(str(jump))
            assert answers(url) == expected
    for jump in (-YEARS, YEARS):
        offset.write_text(str(jump))
        with serving(tmp_path, (sys.executable, "-c", JUMPING, str(offset))) as (url, _):
            assert answers(url) == expected
    offset.unlink()
    check_kept(tmp_path, expected)
