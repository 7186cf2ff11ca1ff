"""A file of chat requests is read line by line; errors name the line and the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from reprise.bench.replay.pairs import token_pairs
from reprise.bench.workloads import Turn, read_prompts
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer

HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_a_line_is_a_chat_with_what_matters_of_its_request(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    text = '{"type":"object","properties":{"a":{"type":"string"}}}'
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [HELLO], "tools": [TOOL], "temperature": 0.5, "max_completion_tokens": 7}
    (chat,) = read_prompts(written(tmp_path, body | {"response_format": form, "model": "any", "user": "x"}))
    assert chat.workload == "mine"
    assert chat.turns == (Turn((HELLO,), None, tools=(TOOL,), temperature=0.5, max_tokens=7, schema=text),)


def test_what_the_assistant_said_last_is_the_right_answer(tmp_path: Path) -> None:
    chat = {"messages": [HELLO, {"role": "assistant", "content": "hi"}]}
    recorded = {"messages": [HELLO], "output": "hi"}
    for line in (chat, recorded):
        (chat,) = read_prompts(written(tmp_path, line))
        assert chat.turns == (Turn((HELLO,), "hi"),)


def test_lines_that_continue_earlier_ones_are_turns_of_one_chat(tmp_path: Path) -> None:
    first, other = [HELLO], [{"role": "user", "content": "good morning"}]
    second = [*first, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now?"}]
    lines = [{"messages": messages} for messages in (first, other, second)]
    chats = read_prompts(written(tmp_path, *lines))
    assert [[list(turn.messages) for turn in chat.turns] for chat in chats] == [[first, second], [other]]


def test_a_plain_prompt_is_asked_as_it_stands(tmp_path: Path) -> None:
    (chat,) = read_prompts(written(tmp_path, {"prompt": "once upon", "output": " a time", "max_tokens": 3}))
    assert chat.turns == (Turn((), " a time", text="once upon", max_tokens=3),)


def test_calls_come_to_the_template_as_objects_and_parts_as_text(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
    asked = {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}
    back = {"role": "tool", "tool_call_id": "1", "content": "{}"}
    line = {"messages": [asked, {"role": "assistant", "content": "", "tool_calls": [call]}, back]}
    (chat,) = read_prompts(written(tmp_path, line))
    user, assistant, tool = chat.turns[0].for_template()
    assert user["content"] == "hello"
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert tool["content"] == "{}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON: maximum recursion"),
        ("[]", "line 2 is not a chat: expected an object"),
        ("{}", "line 2 is not a chat: expected an object"),
        ('{"messages": "hello"}', "line 2 is not a chat: expected an object"),
        ('{"messages": []}', "'messages' must have at least 1 item"),
        ('{"messages": ["hello"]}', r"'messages\[0\]' is not supported"),
        ('{"messages": [{"role": "user"}]}', r"'messages\[0\].content' is missing"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}', "an answer but no request"),
        ('{"messages": [{"role": "user", "content": "a"}], "temperature": "warm"}', "'temperature' must be"),
        ('{"messages": [{"role": "user", "content": "a"}], "output": 3}', "output is not text"),
        ('{"prompt": [1, 2]}', "line 2 is not a chat"),
        ('{"prompt": "\\ud800"}', "line 2 is not a chat"),
        ('{"prompt": "a", "output": "\\ud800"}', "line 2 is not a chat"),
        ('{"prompt": "a", "max_tokens": 0}', "'max_tokens' must be"),
        ('{"prompt": ""}', 'or a text "prompt"'),
        ('{"prompt": "a", "temperature": true}', "'temperature' must be"),
    ],
)
def test_an_invalid_line_is_an_error_with_its_number(line: str, message: str, tmp_path: Path) -> None:
    file = written(tmp_path, {"messages": [HELLO]})
    with file.open("a", encoding="utf-8") as more:
        more.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_prompts(file)


def test_other_bytes_and_empty_files_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"\n\xff\xfe{}\n")
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_prompts(file)
    file.write_bytes(b"\n")
    with pytest.raises(ValueError, match="the file contains no chats"):
        read_prompts(file)


def test_lines_that_name_their_chat_and_workload_are_its_turns(tmp_path: Path) -> None:
    lines = [
        {"prompt": prompt, "output": "b", "workload": "copies", "chat": chat}
        for prompt, chat in (("a", 0), ("b", "1"), ("c", 0), ("d", None), ("e", None))
    ]
    chats = read_prompts(written(tmp_path, *lines))
    assert {chat.workload for chat in chats} == {"copies"}
    assert [[turn.text for turn in chat.turns] for chat in chats] == [["a", "c"], ["b"], ["d"], ["e"]]


def test_a_replay_has_the_prompt_that_the_model_read(tmp_path: Path) -> None:
    recorded = {"messages": [HELLO], "tools": [TOOL], "prompt": "user: hello", "output": "hi"}
    unread = {"messages": [HELLO], "output": "hi"}
    first, second = read_prompts(written(tmp_path, recorded, unread), for_replay=True)
    assert first.turns == (Turn((HELLO,), "hi", tools=(TOOL,), text="user: hello"),)
    assert second.turns == (Turn((HELLO,), "hi"),)


def test_turns_of_a_recorded_chat_are_one_chat(tmp_path: Path) -> None:
    more = [HELLO, {"role": "assistant", "content": "hi"}, HELLO]
    lines = [{"messages": some, "prompt": f"{len(some)}", "output": "hi"} for some in ([HELLO], more)]
    (chat,) = read_prompts(written(tmp_path, *lines), for_replay=True)
    assert [turn.text for turn in chat.turns] == ["1", "3"]


def test_an_answer_that_calls_a_tool_is_a_message(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    line = {"messages": [HELLO, answer], "tools": [TOOL]}
    (chat,) = read_prompts(written(tmp_path, line), for_replay=True)
    assert chat.turns == (Turn((HELLO,), "", tools=(TOOL,), answer=answer),)
    (pair,) = token_pairs(tokenizer := load_tokenizer(BUNDLED_MODEL), [chat])
    assert tokenizer.decode(pair.answer) == (
        '<tool_call>\n{"name": "look_up", "arguments": {"a": 1}}\n</tool_call>'
    )


def test_a_replay_needs_answers(tmp_path: Path) -> None:
    file = written(tmp_path, {"prompt": "a", "output": ""}, {"prompt": "a"})
    with pytest.raises(ValueError, match="line 2 is not a chat: it has no answer"):
        read_prompts(file, for_replay=True)


def test_turns_become_token_ids_and_those_without_an_answer_go(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    lines = [{"prompt": "the lantern", "output": output, "chat": "c"} for output in ("a bridge", "", "a map")]
    pairs = list(token_pairs(tokenizer, read_prompts(written(tmp_path, *lines), for_replay=True)))
    assert [tokenizer.decode(pair.prompt) for pair in pairs] == 2 * ["the lantern"]
    assert [tokenizer.decode(pair.answer) for pair in pairs] == ["a bridge", "a map"]
    assert [(pair.workload, pair.chat, pair.turn) for pair in pairs] == [("mine", "1", 1), ("mine", "1", 3)]
