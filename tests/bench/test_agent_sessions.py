"""Recorded sessions of agents become chats: each answer is a turn, with all that was said before."""

import json
from pathlib import Path
from typing import Any

import pytest

from reprise.bench.replay.pairs import token_pairs
from reprise.bench.replay.prompts import read_rows
from reprise.bench.replay.sessions import kind_of, read_session, read_sessions
from reprise.cli.main import main
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.embeddings import count_common
from reprise.engine.model.loading import load_tokenizer
from tests.end_to_end.clients.test_cached_turns import THINKING_TEMPLATE
from tests.engine.text.test_tokenizer import make_thinker

READ = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.py"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "     1→one = 1\n     2→two = 2"}


def line(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    """Make a line as Claude Code writes it."""
    message = {"role": kind, "content": content, "id": "msg_1", "model": "any", "usage": {"input_tokens": 3}}
    about = {"type": kind, "sessionId": "s", "isSidechain": False, "uuid": "u", "cwd": "/repo"}
    return about | {"message": message} | more


TALK = [
    {"type": "summary", "summary": "Numbers", "leafUuid": "u"},
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    line("user", "Add three."),
    line("assistant", [{"type": "thinking", "thinking": "Look first.", "signature": "s"}]),
    line("assistant", [{"type": "text", "text": "I read it."}]),
    line("assistant", [READ]),
    line("user", [RESULT]),
    {"type": "system", "subtype": "info", "content": "not shown to the model"},
    line("assistant", [{"type": "text", "text": "Done."}]),
]


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "session.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return file


def test_a_transcript_has_a_turn_for_each_answer_however_many_lines_it_has(tmp_path: Path) -> None:
    (chat,) = read_session(written(tmp_path, *TALK))
    first, second = chat.turns
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]
    assert second.messages[:2] == (*first.messages, first.answer)
    assert first.answer["content"] == "I read it."
    assert first.answer["reasoning_content"] == "Look first."
    assert first.answer["tool_calls"][0]["function"] == {"name": "Read", "arguments": READ["input"]}
    assert second.messages[2] == {"role": "tool", "content": RESULT["content"], "tool_call_id": "toolu_1"}
    assert second.answer == {"role": "assistant", "content": "Done."}


def test_its_tokens_are_those_of_the_chat_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    first, second = token_pairs(tokenizer, read_session(written(tmp_path, *TALK)))
    assert tokenizer.decode(first.answer).startswith("I read it.<tool_call>")
    assert tokenizer.decode(second.answer) == "Done."
    assert second.prompt[: len(first.prompt) + len(first.answer)] == (*first.prompt, *first.answer)
    assert (first.chat, first.turn, second.turn) == (second.chat, 1, 2)


def test_sub_agents_and_what_follows_a_compaction_are_chats_of_their_own(tmp_path: Path) -> None:
    asked, said = line("user", "Go."), line("assistant", [{"type": "text", "text": "ok"}])
    other = {"isSidechain": True, "agentId": "a1"}
    lines = [asked, asked | other, said | other, said, asked | {"isCompactSummary": True}, said]
    chats = read_session(written(tmp_path, *lines))
    assert [len(chat.turns) for chat in chats] == [1, 1, 1]
    assert all(len(turn.messages) == 1 for chat in chats for turn in chat.turns)


CODEX = [
    {"type": "session_meta", "payload": {"id": "s", "cwd": "/repo"}},
    {"type": "response_item", "payload": {"type": "message", "role": "developer", "content": [
        {"type": "input_text", "text": "Be brief."}]}},
    {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "Add three."}]}},
    {"type": "event_msg", "payload": {"type": "agent_message", "message": "not the model's"}},
    {"type": "response_item", "payload": {"type": "reasoning", "summary": [
        {"type": "summary_text", "text": "Look first."}], "encrypted_content": "x"}},
    {"type": "response_item", "payload": {"type": "function_call", "name": "shell", "call_id": "c1",
                                          "arguments": "{\"command\": [\"cat\", \"a.py\"]}"}},
    {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1",
                                          "output": "one = 1"}},
    {"type": "response_item", "payload": {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c2",
                                          "input": "*** Begin Patch"}},
    {"type": "response_item", "payload": {"type": "custom_tool_call_output", "call_id": "c2",
                                          "output": "Done"}},
    {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "Done."}]}},
    {"type": "compacted", "payload": {"message": "They added three."}},
    {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "Go on."}]}},
    {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "I do."}]}},
]  # fmt: skip


def test_a_rollout_of_codex_has_a_turn_for_each_answer(tmp_path: Path) -> None:
    before, after = read_session(written(tmp_path, *CODEX))
    assert [kind_of(turn) for turn in before.turns] == ["shell", "apply_patch", "text"]
    first, second, third = before.turns
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.answer["reasoning_content"] == "Look first."
    assert first.answer["tool_calls"][0]["function"]["arguments"] == {"command": ["cat", "a.py"]}
    assert second.messages[-1]["content"] == "one = 1"
    assert second.answer["tool_calls"][0]["function"]["arguments"] == {"input": "*** Begin Patch"}
    assert third.answer["content"] == "Done."
    assert [turn.messages[0]["content"] for turn in after.turns] == ["Go on."]


def test_a_rollout_of_an_older_codex_has_the_items_themselves(tmp_path: Path) -> None:
    items = [line["payload"] for line in CODEX if line["type"] == "response_item"]
    about = {"id": "s", "timestamp": "2025-09-10T18:58:38.331Z", "instructions": "Be brief."}
    (chat,) = read_session(written(tmp_path, about, {"record_type": "state"}, *items[1:]))
    assert [kind_of(turn) for turn in chat.turns] == ["shell", "apply_patch", "text", "text"]


OPENCODE = {
    "info": {"id": "ses_1", "title": "Numbers"},
    "messages": [
        {"info": {"role": "user"}, "parts": [{"type": "text", "text": "Add three."}]},
        {"info": {"role": "assistant"}, "parts": [
            {"type": "step-start"}, {"type": "reasoning", "text": "Look first."},
            {"type": "tool", "tool": "read", "callID": "c1", "state": {
                "status": "completed", "input": {"filePath": "a.py"}, "output": "one = 1"}},
            {"type": "tool", "tool": "read", "callID": "c2", "state": {
                "status": "error", "input": {"filePath": "b.py"}, "error": "no file"}},
            {"type": "step-finish"}, {"type": "text", "text": "Done."}]},
    ],
}  # fmt: skip


def test_what_the_client_wrote_in_place_of_an_answer_is_none(tmp_path: Path) -> None:
    error = line("assistant", [{"type": "text", "text": "API Error: 529"}])
    synthetic = error | {"message": error["message"] | {"model": "<synthetic>"}}
    added = [error | {"isApiErrorMessage": True}, synthetic]
    whole, (chat,) = read_session(written(tmp_path, *TALK)), read_session(written(tmp_path, *TALK, *added))
    assert whole == [chat]


def test_an_export_of_opencode_has_a_turn_for_each_answer(tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    for text in (json.dumps(OPENCODE), json.dumps(OPENCODE, indent=2)):
        file.write_text(text, encoding="utf-8")
        (chat,) = read_session(file)
        first, second = chat.turns
        assert [kind_of(first), kind_of(second)] == ["read", "text"]
        assert first.answer["reasoning_content"] == "Look first."
        assert len(first.answer["tool_calls"]) == 2
        assert [message["role"] for message in second.messages] == ["user", "assistant", "tool", "tool"]
        assert [message["content"] for message in second.messages[-2:]] == ["one = 1", "no file"]


def test_tools_are_those_that_were_called_and_required_is_what_every_call_had(tmp_path: Path) -> None:
    more = READ | {"id": "toolu_2", "input": {"file_path": "b.py", "limit": 9}}
    said = line("assistant", [more]), line("user", [RESULT | {"tool_use_id": "toolu_2"}])
    (chat,) = read_session(written(tmp_path, *TALK, line("user", "And b?"), *said, TALK[-1]))
    (tool,) = chat.turns[0].tools
    assert tool["function"]["name"] == "Read"
    parameters = tool["function"]["parameters"]
    assert parameters["required"] == ["file_path"]
    assert parameters["properties"] == {"file_path": {"type": "string"}, "limit": {"type": "integer"}}


def test_a_folder_of_sessions_is_one_workload_and_its_kinds_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "claude"
    folder.mkdir()
    for number in range(5):
        written(folder, *TALK).rename(folder / f"{number}.jsonl")
    (folder / "index.json").write_text("{}")
    made = tmp_path / "made.json"
    command = ["bench", "replay", "--session", str(folder), "--drafters", "auto-warm,hindsight-warm"]
    assert main([*command, "--cost-curve", "apple-m4-pro-4bit", "--json", str(made)]) == 0
    rows = json.loads(made.read_text())["replay"]["rows"]
    found = {(row["workload"], row["drafter"]): row for row in rows}
    assert {workload for workload, _ in found} == {"claude", "answers: Read", "answers: text"}
    whole = found["claude", "auto-warm"]
    assert whole["pairs"] == 10
    assert whole["low"] <= whole["speedup"] <= whole["high"]
    assert found["claude", "hindsight-warm"]["speedup"] >= whole["speedup"]


def test_what_a_server_recorded_is_a_session_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": "Say it again: one two three four five."}]
    recorded = {"messages": messages, "prompt": "user: one two three", "output": "one two three"}
    file = written(tmp_path, recorded)
    (chat,) = read_session(file)
    assert (chat.turns[0].text, chat.turns[0].messages) == (recorded["prompt"], tuple(messages))
    assert main(["bench", "replay", "--session", str(file), "--drafters", "auto"]) == 0
    assert "session" in capsys.readouterr().out


def test_a_file_without_a_session_is_an_error(tmp_path: Path) -> None:
    for lines in ([{"type": "summary"}], [line("user", "Anyone there?")], []):
        with pytest.raises(ValueError, match=r"session\.jsonl"):
            read_session(written(tmp_path, *lines))


@pytest.mark.parametrize(
    "text", ['{"info": {}, "messages": 5}', '{"info": {}, "messages": ["a", {"info": null, "parts": 3}]}']
)
def test_an_export_that_makes_no_sense_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"export\.json"):
        read_session(file)


def test_a_folder_without_sessions_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(ValueError, match="no sessions"):
        read_sessions(tmp_path)


def test_what_an_agent_waits_for_is_counted_by_how_thoughts_come_back(tmp_path: Path) -> None:
    thinker = make_thinker()
    thinker.wrapped.chat_template = THINKING_TEMPLATE
    talk = [
        *TALK,
        line("user", "Now say why. " * 9),
        line("assistant", [{"type": "text", "text": "Because."}]),
    ]
    (row,) = read_rows(thinker, read_session(written(tmp_path, *talk)), lambda _: None)
    (chat,) = read_session(written(tmp_path, *talk))
    rendered = [thinker.render_chat(list(turn.messages), list(turn.tools)) for turn in chat.turns]
    assert (row["chats"], row["turns"], row["first"]) == (1, 3, len(rendered[0]))
    # A tool's result is new in the second prompt, and the user's words are in the third.
    at_result, at_words = (
        count_common(tuple(rendered[turn]), tuple(thinker.render_chat(messages, list(chat.turns[0].tools))))
        for turn, messages in (
            (1, [*chat.turns[1].messages[:-1], {**chat.turns[1].messages[-1], "content": "~"}]),
            (2, [*chat.turns[2].messages[:-1], {"role": "user", "content": "~"}]),
        )
    )
    new = len(rendered[1]) - at_result + len(rendered[2]) - at_words
    assert new <= row["ahead"] <= new + 8
    assert row["turn"] == row["ahead"]
    # The template drops the thought when the user speaks: all that follows it is read again.
    begins = count_common(tuple(rendered[1]), tuple(rendered[2]))
    assert row["returned"] == row["ahead"] + at_words - begins
    assert row["lost"] > row["ahead"]
    assert row["kept"] < row["returned"]


def test_the_command_counts_what_agents_wait_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, found = written(tmp_path, *TALK), tmp_path / "found.json"
    assert main(["bench", "replay", "--reading", "--session", str(file), "--json", str(found)]) == 0
    (row,) = json.loads(found.read_text())["replay"]["rows"]
    assert row["turns"] == 2
    assert "thoughts" in capsys.readouterr().out
    assert main(["bench", "replay", "--reading", "--pairs", str(tmp_path / "none")]) != 0
