"""Conversations that a chat template was not written for lose nothing, and stay the same from turn to turn."""

import json
import logging
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer

from config.settings import BUNDLED_MODEL
from engine.text.chat_template import TemplateError
from engine.text.template_traits import Traits
from engine.text.tokenizer import Tokenizer
from tests.engine.support import VOCAB_SIZE

TEMPLATES = sorted(path.stem for path in (Path(__file__).parent / "templates").glob("*.jinja"))
ALL = ["bundled", *TEMPLATES]
PROPERTIES = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "read", "description": "Read.", "parameters": PROPERTIES}}]


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def said(text, *calls):
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": "read", "arguments": {"path": f"{call_id}.py"}},
            }
            for call_id in calls
        ]
    return message


def result(call_id, text):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@cache
def make(name: str) -> Tokenizer:
    """Make the bundled tokenizer with a chat template of the folder."""
    if name == "bundled":
        return Tokenizer(load_tokenizer(BUNDLED_MODEL), VOCAB_SIZE)
    return with_template((Path(__file__).parent / f"templates/{name}.jinja").read_text())


def with_template(template: str | dict[str, str]) -> Tokenizer:
    """Make the bundled tokenizer with a chat template, recognized as mlx-lm does at a load."""
    inner = load_tokenizer(BUNDLED_MODEL, {"chat_template": template})._tokenizer
    inner.chat_template = template
    from mlx_lm.tokenizer_utils import _infer_tool_parser
    from importlib import import_module

    name = _infer_tool_parser(inner)
    parser = import_module(f"mlx_lm.tool_parsers.{name}") if name else None
    wrapped = TokenizerWrapper(
        inner,
        tool_parser=parser and parser.parse_tool_call,
        tool_call_start=parser and parser.tool_call_start,
        tool_call_end=parser and parser.tool_call_end,
    )
    return Tokenizer(wrapped, VOCAB_SIZE)


def text_of(tokenizer: Tokenizer, messages, tools=None) -> str:
    return tokenizer.decode(tokenizer.render_chat(messages, tools))


CASES = {
    "plain": ([system("be-brief"), user("one")], None),
    "two of the user": ([system("be-brief"), user("one"), user("two")], None),
    "late system": ([system("be-brief"), user("one"), said("two"), system("hurry"), user("three")], None),
    "system last": ([user("one"), said("two"), system("hurry")], None),
    "only system": ([system("say-one")], None),
    "assistant first": ([system("be-brief"), said("two"), user("three")], None),
    "assistant alone first": ([said("two"), user("three")], None),
    "two of the assistant": ([user("one"), said("two"), said("more"), user("three")], None),
    "null": ([user("one"), said(None), user("three")], None),
    "calls": ([system("be-brief"), user("one"), said(None, "toolu_1"), result("toolu_1", "found")], TOOLS),
    "calls, then the user": (
        [user("one"), said("", "toolu_1"), result("toolu_1", "found"), user("two")],
        TOOLS,
    ),
    "calls, then system": (
        [user("one"), said(None, "toolu_1"), result("toolu_1", "found"), system("hurry"), user("two")],
        TOOLS,
    ),
    "two calls": (
        [user("one"), said(None, "a1", "b2"), result("b2", "second"), result("a1", "first"), said("done")],
        TOOLS,
    ),
    "calls of the past": ([user("one"), said(None, "a1"), result("a1", "first"), said("done")], None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ALL)
def test_nothing_of_a_conversation_is_lost(name: str, case: str):
    messages, tools = CASES[case]
    text = text_of(make(name), messages, tools)
    for message in messages:
        if message["content"]:
            assert message["content"] in text
        for call in message.get("tool_calls", ()):
            assert call["function"]["arguments"]["path"] in text
    if tools and case != "two calls":
        # Templates such as Mistral's show tools only while the user's last words are not answered.
        assert "Read." in text
    assert "None" not in text


def test_traits_are_those_of_the_templates_rules():
    def lacks(name: str) -> set[str]:
        traits = make(name)._template.traits
        assert traits is not None
        return {trait for trait in Traits.__slots__ if not getattr(traits, trait)}

    assert lacks("bundled") == set()
    assert lacks("qwen35") == {"later_systems", "system_alone"}
    assert lacks("smol") == {"tools"}
    assert lacks("drops") == {"later_systems", "tools"}
    turns = {"later_systems", "user_runs", "assistant_runs", "system_alone", "starts_any"}
    assert lacks("gemma3") == turns | {"tools"}
    assert lacks("gemma2") == turns | {"tools", "has_system"}
    assert lacks("mistral") == turns | {"after_results", "any_ids"}
    assert lacks("llama3") == {"parallel_calls"}
    assert lacks("deepseek") == {"objects"}


WORDS = st.sampled_from(["one", "two words", "three\nlines", " padded "])


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Any]]:
    """Return the messages of one conversation at each of its turns, every one before an answer."""
    messages: list[Any] = [system("the rules")] if draw(st.booleans()) else []
    turns = []
    called: list[str] = []
    for number in range(draw(st.integers(2, 6))):
        for call_id in called:
            messages.append(result(call_id, f"result of {call_id}"))
        extra = draw(st.lists(st.sampled_from(["user", "system"]), max_size=2))
        if not called or extra:
            messages += [user(draw(WORDS)) if role == "user" else system("later rules") for role in extra]
            if not called:
                messages.append(user(draw(WORDS)))
        turns.append(list(messages))
        num_calls = draw(st.integers(0, 2))
        called = [f"call_{number}_{index}" for index in range(num_calls)]
        messages.append(said(draw(st.sampled_from([None, "", "I look."])) if called else "Done.", *called))
    return turns


# Mistral's template itself shows the system text with the last message.
@pytest.mark.parametrize("name", [name for name in ALL if name not in ("mistral", "deepseek")])
@given(turns=conversations())
@settings(max_examples=40, deadline=None)
def test_what_was_rendered_stays_the_beginning_of_the_next_turn(name: str, turns: list[list[Any]]):
    tokenizer = make(name)
    for before, after in pairwise(
        tokenizer.render_chat(turn, TOOLS, {"enable_thinking": False}) for turn in turns
    ):
        opening = len(common(before, after))
        assert len(before) - opening <= len(
            tokenizer.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        )
        assert opening > len(before) - 40


def common(one: list[int], other: list[int]) -> list[int]:
    return one[
        : next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
    ]
