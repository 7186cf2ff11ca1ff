"""What owners of Macs measured is checked before it is shown."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from scripts.macs_page import NONE_YET, PAGE, ROWS, BlockError, read_block, write_page

TASK = {"num_tokens": 100, "plain_tokens_per_s": 50.0, "drafted_tokens_per_s": 123.4, "is_equal": True}
BLOCK: dict[str, Any] = {
    "date": "2026-11-30T20:30:42+00:00",
    "machine": {"memory_bytes": 24 * 2**30, "reprise": "0.1.0"},
    "device": {"name": "Apple M4 Pro (Metal)"},
    "model": {"source": "Qwen3-8B-4bit", "dtype": "4-bit"},
    "answer": {"is_equal": True},
    "speeds": {"edits": TASK, "quotes": TASK, "chat": TASK | {"drafted_tokens_per_s": 50.5}},
    "first_token": {"num_prompt_tokens": 8192, "seconds": 19.04},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    block = deepcopy(BLOCK)
    *folders, name = path.split(".")
    place = block
    for folder in folders:
        place = place[folder]
    place[name] = value
    return block


def test_a_block_becomes_a_row(tmp_path: Path) -> None:
    page = tmp_path / "macs.md"
    write_page([read_block(f"as printed:\n```json\n{json.dumps(BLOCK, indent=1)}\n```\n")], page)
    text = page.read_text()
    assert NONE_YET not in text
    assert text.endswith(
        "| Apple M4 Pro | 24 GB | Qwen3-8B-4bit | 4-bit | 50 -> 123 | 50 -> 123 | 50 -> 50.5 | 19.0 s "
        "| 0.1.0 | 2026-11-30 |\n"
    )


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("device.name", "CPU", "not on a Mac's Metal"),
        ("model.source", "a folder", "no name on the hub"),
        ("answer.is_equal", False, "differ with drafts"),
        ("speeds.chat", TASK | {"is_equal": False}, "differ with drafts"),
        ("speeds.chat", TASK | {"plain_tokens_per_s": 0}, "impossible"),
        ("date", "2999-01-01T00:00:00+00:00", "in the future"),
        ("first_token", {}, "not what `reprise doctor --share` prints"),
        ("speeds", None, "not what `reprise doctor --share` prints"),
    ],
)
def test_a_block_that_proves_nothing_is_refused(path: str, value: Any, why: str) -> None:
    with pytest.raises(BlockError, match=why):
        read_block(json.dumps(changed(path, value)))


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    page = tmp_path / "macs.md"
    write_page(json.loads(ROWS.read_text()), page)
    assert page.read_text() == PAGE.read_text()
