"""Benchmarks read what the real server recorded, and get the same prompts and answers, token by token."""

import json
import time
from dataclasses import replace
from pathlib import Path

import httpx

from reprise.bench.replay.pairs import token_pairs
from reprise.bench.workloads import Turn, make_chats, read_prompts
from reprise.bench.workloads.agents import tool_of
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer
from tests.end_to_end.conftest import RECORDED

WRITTEN_WITHIN_S = 240
TOOL = tool_of("find", "Find the text.", ("pattern",))


def test_recorded_turns_come_back_as_the_prompts_and_answers_that_they_were(
    server_url: str, server_folder: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    (made,) = make_chats("passage", 1, 1, lambda text: len(text.split()))
    chat = replace(made, turns=tuple(replace(turn, tools=(TOOL,)) for turn in made.turns))
    answers = []
    for at, turn in enumerate(chat.turns[:3]):
        body = {"messages": turn.messages, "tools": turn.tools, "temperature": 0, "max_tokens": 60}
        response = httpx.post(
            f"{server_url}/v1/chat/completions",
            json=body,
            headers={"X-Request-Id": f"to-record-{at}"},
            timeout=WRITTEN_WITHIN_S,
        )
        answers.append(response.raise_for_status().json())
    own = tmp_path / "own.jsonl"
    own.write_text("".join(recorded(server_folder / RECORDED, 3)))

    (recorded_chat,) = read_prompts(own)
    pairs = list(token_pairs(tokenizer, read_prompts(own, for_replay=True)))
    for turn, said, pair, answer in zip(recorded_chat.turns, chat.turns, pairs, answers, strict=False):
        prompt = tokenizer.render_chat(turn.for_template(), list(turn.tools))
        assert prompt == tokenizer.render_chat(said.for_template(), list(said.tools))
        assert list(pair.prompt) == prompt
        assert len(prompt) == answer["usage"]["prompt_tokens"]
        assert turn == Turn(
            said.messages, tokenizer.decode(pair.answer), tools=said.tools, max_tokens=60, temperature=0
        )
    assert answers[1]["choices"][0]["message"]["content"] == recorded_chat.turns[1].reference
    assert len(recorded_chat.turns) == 3


def recorded(file: Path, count: int) -> list[str]:
    """Wait for this test's lines, which are written after the answers are sent, and return them."""
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    found: list[str] = []
    while len(found) < count:
        assert time.monotonic() < deadline, "it was never written"
        time.sleep(0.05)
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        # The last line may be incomplete.
        found = [line for line in lines if line.endswith("\n") and is_own(line)]
    return found


def is_own(line: str) -> bool:
    return json.loads(line)["id"].startswith("to-record-")
