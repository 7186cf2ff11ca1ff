"""Prefixes are kept in files by all ranks, and found again after both have been restarted."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.machines.ranks import Started, ranks
from tests.end_to_end.machines.test_several_machines import post
from tests.tiny_models import write_random_model

PROMPT = [300 + 7 * at % 500 for at in range(400)]
ANSWER = [77] * 80
"""Long enough for the state after it to get a file, although there is one of the prompt's end."""
ENDS_WITHIN_S = 240
DAMAGED = "dropped a saved prefix that another rank cannot read"


def begin(started: Started) -> None:
    """Let the model answer PROMPT with ANSWER, so that its state after both is kept."""
    post(started.address, prompt=PROMPT, max_tokens=len(ANSWER), allowed_token_ids=ANSWER[:1])


def ask(started: Started) -> tuple[Any, int]:
    """Return the answer to what follows both, and how many tokens of this prompt were cached."""
    asked = [*PROMPT, *ANSWER, 5, 6, 7]
    answer = post(started.address, prompt=asked, max_tokens=12, temperature=0.7, seed=3, logprobs=2)
    (choice,) = answer["choices"]
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return (choice["text"], choice["logprobs"]), cached


def end(started: Started) -> None:
    """End rank 0, and with it all."""
    started.processes[0].terminate()
    assert started.statuses(ENDS_WITHIN_S) == [0] * len(started.processes)


def names_of(folder: Path) -> set[str]:
    """Return the names of the prefix files in a folder."""
    return {file.name for file in folder.glob("*.prefix")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "qwen3_5"])
def test_a_restart_of_all_ranks_finds_the_prefix_and_answers_the_same(name: str, tmp_path: Path) -> None:
    model = write_random_model(name, tmp_path / "model")
    folder = tmp_path / "prefixes"
    flags = ("--prefix-cache-dir", str(folder))
    with ranks(tmp_path, model, 1) as one:
        one.wait_until_ready()
        expected, _ = ask(one)
    with ranks(tmp_path, model, 2, *flags) as first:
        first.wait_until_ready()
        begin(first)
        end(first)
    others = folder / "rank-1-of-2"
    assert names_of(folder)
    assert names_of(folder) == names_of(others)
    with ranks(tmp_path, model, 2, *flags) as second:
        second.wait_until_ready()
        answer, cached = ask(second)
        assert answer == expected
        assert cached >= len(PROMPT)
        end(second)
    for file in others.glob("*.prefix"):
        file.write_bytes(b"damaged")
    with ranks(tmp_path, model, 2, *flags) as third:
        third.wait_until_ready()
        assert ask(third) == (expected, 0)
        assert DAMAGED in third.said(0)
        end(third)
    # Both have forgotten it, and keep it anew.
    assert names_of(folder)
    assert names_of(folder) == names_of(others)
    assert b"damaged" not in {file.read_bytes() for file in others.glob("*.prefix")}


def test_a_rank_without_a_folder_is_refused(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    only_rank_0 = (("--prefix-cache-dir", str(tmp_path / "prefixes")), ())
    with ranks(tmp_path, model, 2, flags_by_rank=only_rank_0) as started:
        assert started.statuses(ENDS_WITHIN_S) == [1, 1]
        assert "rank 1 (127.0.0.1) has another setting prefix_cache_dir than rank 0" in started.said(1)
