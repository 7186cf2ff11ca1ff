"""`reprise bench workloads` lists the generated chats, shows them, and writes them to files."""

import json
from pathlib import Path

import pytest

from reprise.bench.replay.pairs import token_pairs
from reprise.bench.workloads import read_prompts
from reprise.cli.main import main
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer


def test_the_table_tells_how_long_chats_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads", "--workloads", "passage,remap,free"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "passage 600" in rows["passage"] or "passage 800" in rows["passage"]
    assert rows["remap"].split()[-1] == "48"
    assert rows["free"].split()[-1] == "-"


def test_what_is_written_is_read_as_prompts_and_as_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "turns.jsonl"
    names = "agent,extraction,json_rag,free"
    given = ["--workloads", names, "--prompt-tokens", "100", "--chats", "2", "--write", str(file)]
    assert main(["bench", "workloads", *given]) == 0
    assert "22 turns" in capsys.readouterr().out
    chats = read_prompts(file)
    assert [len(chat.turns) for chat in chats] == [7, 7, 1, 1, 3, 3]
    assert chats[0].turns[0].tools
    assert chats[2].turns[0].schema
    assert [chat.workload for chat in chats[1:]] == ["agent", *2 * ["extraction"], *2 * ["json_rag"]]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["chat"], line["turn"]) for line in lines[:2]] == [("agent 1", 1), ("agent 1", 2)]
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    pairs = token_pairs(tokenizer, read_prompts(file, for_replay=True))
    assert [tokenizer.decode(pair.answer) for pair in pairs] == [line["output"] for line in lines]
    assert tokenizer.decode(pairs[0].prompt).endswith("<|im_start|>assistant\n")


def test_a_chat_is_shown_with_its_right_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads", "--workloads", "quotes,trap", "--show"]) == 0
    printed = capsys.readouterr().out
    assert "Quote the sentence that mentions" in printed
    assert "right answer" in printed
    assert "no single right answer" in printed


def test_unknown_names_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads", "--workloads", "edits,prose"]) == 2
    assert "prose is not one of records" in capsys.readouterr().err
