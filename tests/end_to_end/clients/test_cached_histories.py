"""A session with every kind of tests/server/requests/conversations: all that it sent before stays cached.

The histories of the cases are its turns, one after the other, each with the server's answer between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.end_to_end.clients.scripted import recording, serving_script
from tests.engine.text.templates.test_chat_template import FOLDER
from tests.server.requests.conversations.test_cases import CASES, LARGE

RULES = "Answer in one line, and say what you did."
SAID = "It is done."
MIN_TURNS = 30
MOVES_TOOLS = ("mistral",)
"""Templates that show tools beside the user's last words only: prompts with tools differ from there on."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """One of the APIs. messages: the field of the conversation. head: fields that stay the same."""

    path: str
    messages: str
    head: Json
    first: Sequence[Json] = ()


CHATS = Api("/v1/chat/completions", "messages", {}, [{"role": "system", "content": RULES}])
MESSAGES = Api("/v1/messages", "messages", {"system": RULES, "max_tokens": 20})
RESPONSES = Api("/v1/responses", "input", {"instructions": RULES})


def turns_of(api: Api, has_tools: bool) -> list[list[Any]]:
    """Return what each turn adds: a history up to a message of the user.

    Items that bring tools are all in the first turn, since tools stand at the head of a prompt; without tools
    they are left out.
    """
    found = [
        case["body"].get(api.messages)
        for case in CASES
        if (case["path"], case["status"]) == (api.path, 200) and case["name"] not in LARGE
    ]
    turns: list[list[Any]] = [[]]
    for history in found:
        if not isinstance(history, list):
            continue
        if any(isinstance(item, dict) and item.get("tools") for item in history):
            turns[0] += history if has_tools else []
            continue
        ends = [at + 1 for at, item in enumerate(history) if is_users(item)]
        cuts = [0, *ends[:-1], len(history)]
        turns += [history[start:end] for start, end in pairwise(cuts) if start < end]
    return turns if turns[0] else turns[1:]


def is_users(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") == "user"


def tools_of(api: Api) -> list[Json]:
    """Return the tools of all cases, odd ones too."""
    lists = [case["body"].get("tools") for case in CASES if case["path"] == api.path]
    return [tool for tools in lists if isinstance(tools, list) and len(tools) < 20 for tool in tools]


def usage_of(answer: Json) -> tuple[int, int]:
    """Return the tokens of the prompt, and how many of them were cached."""
    usage = answer["usage"]
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"] or 0
        return usage["input_tokens"] + cached + (usage["cache_creation_input_tokens"] or 0), cached
    total = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    return total, details["cached_tokens"]


@pytest.mark.parametrize(
    "template",
    [None, "qwen35", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "mistral"))],
)
@pytest.mark.parametrize("api", [CHATS, MESSAGES, RESPONSES], ids=lambda api: api.path)
def test_a_session_that_meets_every_kind_stays_cached_from_turn_to_turn(
    api: Api, template: str | None, tmp_path: Path
):
    chat_template = template and str(FOLDER / f"{template}.jinja")
    settings = recording(tmp_path, max_context_tokens=65536, chat_template=chat_template)
    messages: list[Any] = [*api.first]
    has_tools = template not in MOVES_TOOLS
    turns = turns_of(api, has_tools)
    assert len(turns) >= MIN_TURNS
    tools = tools_of(api) if has_tools else []
    lost = []
    num_before = 0
    with serving_script(lambda _: SAID, settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        for turn in turns:
            messages += turn
            body = {**api.head, api.messages: messages, "tools": tools}
            response = client.post(api.path, json=body)
            assert response.status_code == 200, (messages[-8:], response.text[-200:])
            num_prompt, num_cached = usage_of(response.json())
            if num_cached < 0.95 * num_before:
                lost.append((num_before, num_cached, turn))
            num_before = num_prompt
            messages.append({"role": "assistant", "content": SAID})
    assert lost == []
