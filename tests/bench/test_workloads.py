"""Workloads are reproducible, and have right answers."""

import ast
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reprise.bench import lexicon
from reprise.bench.workloads import VERSION, WORKLOADS, Chat, lengths_of, make_chats
from reprise.bench.workloads import generated as words
from reprise.engine.model.loading import load_tokenizer
from reprise.server.requests.chat import ChatRequest

BUNDLED = Path(__file__).parents[2] / "demo_model"
CONTEXT = 65_536
NOTHING_RIGHT = ("free", "trap", "words")


@pytest.fixture(scope="module")
def count_tokens() -> Callable[[str], int]:
    tokenizer = load_tokenizer(BUNDLED)
    return lambda text: len(tokenizer.render_chat([{"role": "user", "content": text}]))


def count_words(text: str) -> int:
    return len(text.split())


def chats_of(workload: str, count: int = 3, seed: int = 1) -> list[Chat]:
    return make_chats(workload, count, seed, count_words)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_chats_depend_on_nothing_but_the_seed(workload: str) -> None:
    assert chats_of(workload) == chats_of(workload)
    assert chats_of(workload) != chats_of(workload, seed=2)


def test_chats_of_another_kind_are_another_version() -> None:
    chats = [chat for name in WORKLOADS for chat in chats_of(name)]
    made = [(turn.messages, turn.tools, turn.reference) for chat in chats for turn in chat.turns]
    digest = hashlib.sha256(json.dumps(made).encode()).hexdigest()
    assert (VERSION, digest[:16]) == (3, "6a9c93e490de7ec0")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_turn_says_what_is_right_and_goes_on_from_it(workload: str) -> None:
    for chat in chats_of(workload):
        assert chat.workload == workload
        for turn in chat.turns:
            assert (turn.reference is None) == (workload in NOTHING_RIGHT)
            assert turn.messages[-1]["role"] in ("user", "tool")
        for before, turn in zip(chat.turns, chat.turns[1:], strict=False):
            if len(turn.messages) > 1:
                answer = turn.messages[len(before.messages)]
                assert turn.messages[: len(before.messages)] == before.messages
                assert answer["content"] == before.reference or answer["tool_calls"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_server_takes_every_turn_as_it_is(workload: str) -> None:
    for chat in chats_of(workload, 1):
        for turn in chat.turns:
            body = {"messages": list(turn.messages), "tools": list(turn.tools) or None}
            ChatRequest.model_validate(body)


@pytest.mark.parametrize("workload", [name for name, one in WORKLOADS.items() if one.prompt_tokens])
def test_prompts_are_about_as_long_as_asked(workload: str, count_tokens: Callable[[str], int]) -> None:
    for length in (*lengths_of(workload), 2000):
        (chat,) = make_chats(workload, 1, 1, count_tokens, length)
        assert chat.prompt_tokens == length
        assert count_tokens(chat.turns[0].messages[0]["content"]) == pytest.approx(length, rel=0.05)


def test_a_workload_without_lengths_takes_none() -> None:
    assert lengths_of("free", [600]) == (None,)
    assert lengths_of("json_rag", [300]) == (300,)


@pytest.mark.parametrize("workload", ["edits", "edits_short", "code"])
def test_every_edit_changes_a_little_of_a_valid_file(workload: str) -> None:
    for chat in chats_of(workload, 5):
        file = chat.turns[0].messages[0]["content"].partition("\n\n")[2]
        for turn in chat.turns:
            assert turn.reference
            changed = turn.reference.splitlines()
            ast.parse("\n".join(changed[1:-1]))
            assert changed != file.splitlines()
            if len(chat.turns) > 2:
                file = turn.reference


def test_polish_words_are_no_english_ones_and_stand_for_one_thing_each() -> None:
    names = [name.lower() for name in lexicon.POLISH_NAMES]
    lists = [lexicon.POLISH_NOUNS, lexicon.POLISH_ADJECTIVES, names]
    every = [word for some in lists for word in some]
    assert len(every) == len(set(every))
    assert not set(every) & {*words.NOUNS, *words.ADJECTIVES, *words.VERBS, *words.FIELDS}


def test_prompts_of_random_words_begin_differently() -> None:
    openings = {chat.turns[0].messages[0]["content"].split()[0] for chat in chats_of("words", 60)}
    assert len(openings) == 60
