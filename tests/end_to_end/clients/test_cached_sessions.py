"""A new session finds the system prompt and the tools of another one cached, though the model has windows."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.end_to_end.clients.scripted import count_shared, recording, serving_script
from tests.end_to_end.clients.test_cached_histories import CHATS, MESSAGES, RESPONSES, Api, usage_of
from tests.engine.support import make_tokenizer
from tests.engine.text.templates.test_chat_template import FOLDER

RULES = " ".join(f"{at}. Look at part {at * 7 % 97} before part {at * 31 % 89}." for at in range(70))
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
Json = dict[str, Any]
HEADS: dict[str, Callable[[list[Json]], Json]] = {
    CHATS.path: lambda messages: {
        "messages": [{"role": "system", "content": RULES}, *messages],
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
        ],
    },
    MESSAGES.path: lambda messages: {
        "messages": messages,
        "system": RULES,
        "max_tokens": 20,
        "tools": [{"name": "look", "description": "Look.", "input_schema": SCHEMA}],
    },
    RESPONSES.path: lambda messages: {
        "input": messages,
        "instructions": RULES,
        "tools": [{"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA}],
    },
}
FIRST, SECOND = "Where is part 12?", "Hi"


@pytest.mark.parametrize("template", [None, "gemma3", "qwen35"])
@pytest.mark.parametrize("api", [CHATS, MESSAGES, RESPONSES], ids=lambda api: api.path)
def test_a_second_session_finds_the_head_of_the_first_one(api: Api, template: str | None, tmp_path: Any):
    chat_template = template and str(FOLDER / f"{template}.jinja")
    settings = recording(tmp_path, max_context_tokens=8192, chat_template=chat_template)

    def ask(client: httpx.Client, text: str) -> tuple[int, int]:
        response = client.post(api.path, json=HEADS[api.path]([{"role": "user", "content": text}]))
        assert response.status_code == 200, response.text
        return usage_of(response.json())

    with (
        serving_script(lambda _: "It is there.", settings, has_window=True) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        first, second, again = ask(client, FIRST), ask(client, SECOND), ask(client, FIRST)
    lines = [json.loads(line) for line in (tmp_path / "turns").read_text().splitlines()]
    num_shared = count_shared(make_tokenizer(), lines[:2])[1]
    assert num_shared > 1000
    assert second[1] >= 0.95 * num_shared
    assert first[1] == 0
    assert again[1] == again[0] - 1
