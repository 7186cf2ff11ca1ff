"""A full disk: answers are the same, and the log says what was not kept."""

import shutil
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.conftest import FROM_CHECKOUT, started

PROMPTS = [f"{number}. The lantern in the hall is red and large. " * 60 for number in range(6)]
MAX_FILE_BYTES = 20_000
"""What a file may take on the full disk: less than a prefix, more than a line of the record."""


def answer(url: str, prompt: str) -> tuple[str, int]:
    """Return the text, and how many tokens of the prompt were cached."""
    body = {"prompt": prompt, "max_tokens": 30, "seed": 3}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    given = response.json()
    return given["choices"][0]["text"], given["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def expected(server_url: str) -> list[str]:
    return [answer(server_url, prompt)[0] for prompt in PROMPTS]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_on_a_full_disk_answers_are_the_same(tmp_path: Path, expected: list[str]) -> None:
    flags = ("--prefix-cache-dir", str(tmp_path / "prefixes"), "--record", str(tmp_path / "record"))
    command = ("prlimit", f"--fsize={MAX_FILE_BYTES}", *FROM_CHECKOUT)
    with started(tmp_path, *flags, command=command) as (url, printed, process):
        for _ in range(2):
            assert [answer(url, prompt)[0] for prompt in PROMPTS] == expected
        assert httpx.get(f"{url}/health").status_code == 200
        process.terminate()
        assert process.wait(60) == 0
    said = "".join(printed)
    assert "could not write a prefix" in said
    assert "some requests are not recorded" in said
    assert "Traceback" not in said
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".new")]
