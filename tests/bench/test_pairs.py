"""Files of pairs are read as they were written, and errors name file and line."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import ArgumentsError
from bench.replay.pairs import Pair, read_pairs, tokenized, write_pairs

IDS = st.lists(st.integers(0, 0x10FFFF), min_size=1).map(tuple)
TEXTS = st.text(min_size=1) | IDS
PAIRS = st.builds(
    Pair,
    prompt=TEXTS,
    output=st.text() | IDS,
    workload=st.text(),
    chat=st.text(),
    turn=st.none() | st.integers(0, 9),
    id=st.text(),
)


@given(pairs=st.lists(PAIRS, max_size=3))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_again(pairs: list[Pair], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_pairs(file, pairs)
    assert read_pairs(file) == pairs
    assert len(file.read_bytes().splitlines()) == len(pairs)


def test_a_line_says_only_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    write_pairs(file, [Pair("a\u2028b\n", (1, 2)), Pair("a", "", "w", "c", 1, "i")])
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"prompt": "a\u2028b\n", "output": [1, 2]},
        {"prompt": "a", "output": "", "workload": "w", "chat": "c", "turn": 1, "id": "i"},
    ]


def test_empty_lines_and_unknown_fields_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('\n{"prompt": [1], "output": "b", "messages": [{}], "chat": 7}\r\n\n')
    assert read_pairs(file) == [Pair((1,), "b", chat="7")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Invalid JSON: EOF"),
        (b"[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        (b'{"prompt": "\xff", "output": ""}', "Invalid JSON: invalid unicode"),
        (b'["prompt", "output"]', "Input should be an object"),
        (b'{"output": "b"}', "prompt: Field required"),
        (b'{"prompt": "a"}', "output: Field required"),
        (b'{"prompt": "", "output": "b"}', "prompt: Value should have at least 1 item"),
        (b'{"prompt": [], "output": "b"}', "prompt: Value should have at least 1 item"),
        (b'{"prompt": {"role": "user"}, "output": "b"}', "prompt: Input should be a valid string or Input"),
        (b'{"prompt": "a", "output": null}', "output: Input should be a valid string or Input"),
        (b'{"prompt": [1, -1], "output": "b"}', "prompt[1]: Input should be greater than or equal to 0"),
        (b'{"prompt": [1, true], "output": "b"}', "prompt[1]: Input should be a valid integer"),
        (b'{"prompt": [1, 2.0], "output": "b"}', "prompt[1]: Input should be a valid integer"),
        (b'{"prompt": [1114112], "output": "b"}', "prompt[0]: Input should be less than or equal to"),
        (b'{"prompt": "\\ud800", "output": "b"}', "Invalid JSON"),
        (b'{"prompt": "a", "output": "b", "turn": "1"}', "turn: Input should be a valid integer"),
        (b'{"prompt": "a", "output": "b", "workload": []}', "workload: Input should be a valid string"),
    ],
)
def test_a_line_that_is_no_pair_is_named(line: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(b'{"prompt": "a", "output": "b"}\n' + line + b"\n")
    with pytest.raises(ArgumentsError) as raised:
        read_pairs(file)
    message = str(raised.value)
    assert message.startswith(f"{file} line 2")
    assert reason in message
    assert "\n" not in message


def test_text_is_encoded_and_ids_stay_and_pairs_without_tokens_go() -> None:
    pairs = [Pair("ab", (7,), "w", "c", 2, "i"), Pair("ab", ""), Pair((1,), "c")]
    found = tokenized(pairs, lambda text: [ord(char) for char in text])
    assert [(pair.prompt, pair.answer) for pair in found] == [((97, 98), (7,)), ((1,), (99,))]
    assert (found[0].workload, found[0].chat, found[0].turn) == ("w", "c", 2)
