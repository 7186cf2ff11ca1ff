"""An agent's chats of a git history: what is shown, what is answered, and what a template makes of it."""

import ast
import json
from typing import Any

import pytest

from reprise.bench.replay.pairs import token_pairs
from reprise.bench.workloads import make_chats
from reprise.bench.workloads.agents import FORMS, NUMBERS, Change, agent_chats, call_text
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer

BEFORE = "".join(f"line_{at} = {at}\n" for at in range(30))
AFTER = BEFORE.replace("line_3 = 3\n", 'line_3 = "three"\n').replace("line_20 = 20\n", "")
CHANGE = Change("c0ffee:a.py", "Write three in full; drop 20.", "a.py", BEFORE, AFTER)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BUNDLED_MODEL)


def chat_of(form: str, way: str = "arrow") -> Any:
    (chat,) = agent_chats([CHANGE], [form], [way])
    return chat


def call_of(message: dict[str, Any]) -> tuple[str, dict[str, str]]:
    function = message["tool_calls"][0]["function"]
    return function["name"], json.loads(function["arguments"])


def written(form: str) -> list[dict[str, str]]:
    """Return the arguments of the calls."""
    return [call_of(turn.answer)[1] for turn in chat_of(form).turns]


def test_every_form_and_way_is_a_workload_and_blocks_are_one() -> None:
    chats = [chat.workload for chat in agent_chats([CHANGE], FORMS, [*NUMBERS])]
    assert chats == [f"{form} {way}" for form in FORMS[:-2] for way in NUMBERS] + ["blocks", "whole"]


@pytest.mark.parametrize(
    ("way", "third"),
    [
        ("plain", "line_2 = 2"),
        ("arrow", "     3→line_2 = 2"),
        ("tab", "     3\tline_2 = 2"),
        ("colon", "3: line_2 = 2"),
        ("bar", "00003| line_2 = 2"),
    ],
)
def test_the_agent_has_read_the_file_with_its_numbers(way: str, third: str) -> None:
    *_, asked, reads, result = chat_of("write", way).turns[0].messages
    assert CHANGE.message in asked["content"]
    assert call_of(reads) == ("Read", {"file_path": "a.py"})
    assert reads["tool_calls"][0]["id"] == result["tool_call_id"]
    assert result["content"].split("\n")[2] == third
    assert len(result["content"].split("\n")) == 30


def test_edits_in_turn_change_the_file_and_later_ones_follow_what_was_done() -> None:
    changed = BEFORE
    for edit in written("edit"):
        assert changed.count(edit["old_string"]) == 1
        changed = changed.replace(edit["old_string"], edit["new_string"])
    assert changed == AFTER
    first, second = chat_of("edit").turns
    assert second.messages[: len(first.messages) + 1] == (*first.messages, first.answer)


def test_the_other_forms_say_the_same_change() -> None:
    assert written("write") == [{"file_path": "a.py", "content": AFTER}]
    (patch,) = written("patch")
    lines = patch["input"].split("\n")
    assert lines[:3] == ["*** Begin Patch", "*** Update File: a.py", "@@"]
    assert {"-line_3 = 3", '+line_3 = "three"', "-line_20 = 20"} < set(lines)
    (diff,) = chat_of("diff").turns
    assert "--- a/a.py\n+++ b/a.py\n@@ -1,7 +1,7 @@" in diff.reference
    (blocks,) = chat_of("blocks").turns
    assert "line_20 = 20\nline_21 = 21" in blocks.reference.partition("=======")[2]
    assert BEFORE in blocks.messages[1]["content"]


def test_tokens_are_those_of_the_chat_template(tokenizer: Any) -> None:
    first, second = token_pairs(tokenizer, [chat_of("edit")])
    name, arguments = call_of(chat_of("edit").turns[0].answer)
    assert tokenizer.decode(first.answer) == call_text(name, arguments) == chat_of("edit").turns[0].reference
    assert second.prompt[: len(first.prompt) + len(first.answer)] == (*first.prompt, *first.answer)


def test_the_workload_edits_twice_and_then_writes_the_file() -> None:
    for chat in make_chats("agent_edits", 3, 1, len):
        assert [turn.messages[-1]["role"] for turn in chat.turns] == ["user"] * 3
        shown = chat.turns[0].messages[3]["content"].split("\n")
        file = "".join(line.partition("→")[2] + "\n" for line in shown)
        *edits, write = [call_of(turn.answer)[1] for turn in chat.turns]
        for edit in edits:
            assert file.count(edit["old_string"]) == 1
            file = file.replace(edit["old_string"], edit["new_string"])
        before, after = (ast.parse(text) for text in (file, write["content"]))
        assert ast.dump(before) != ast.dump(after)
        assert len(before.body) == len(after.body)
