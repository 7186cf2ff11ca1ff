"""OpenAI's client on chat templates that are stricter than clients, and on one that knows no tools."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from reprise.config.settings import Settings
from tests.end_to_end.clients.scripted import ANSWER_BEGINS, recording, serving_script
from tests.engine.text.templates.test_chat_template import FOLDER

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [{"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}]
CALL = 'I look.\n<tool_call>\n{"name": "read", "arguments": {"path": "shop.py"}}\n</tool_call>'
HISTORIES: list[list[Any]] = [
    [
        {"role": "system", "content": "be-brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answered"},
        {"role": "system", "content": "hurry"},
        {"role": "user", "content": "second"},
    ],
    [{"role": "user", "content": "first"}, {"role": "user", "content": "second"}],
    [{"role": "system", "content": "say-one"}],
    [{"role": "assistant", "content": "welcome"}, {"role": "user", "content": "first"}],
]


def settings_of(template: str, folder: Path) -> Settings:
    return recording(folder, chat_template=str(FOLDER / f"{template}.jinja"))


@pytest.mark.parametrize("template", ["qwen35", "gemma3", "gemma2"])
def test_conversations_that_the_template_would_refuse_are_answered(template: str, tmp_path: Path):
    with serving_script(lambda _: "Done.", settings_of(template, tmp_path)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for messages in HISTORIES:
            answer = client.chat.completions.create(model="reprise-demo", messages=messages)
            assert answer.choices[0].message.content == "Done."
    lines = [json.loads(line) for line in (tmp_path / "turns").read_text().splitlines()]
    for line, messages in zip(lines, HISTORIES, strict=True):
        assert all(message["content"] in line["prompt"] for message in messages)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("template", ["gemma3", "smol"])
def test_a_template_without_tools_calls_them_and_finds_the_turn_cached(
    template: str, choice: Any, tmp_path: Path
):
    def script(prompt: str) -> str:
        if "price = 8" in prompt:
            return "It costs 8."
        return CALL if choice == "auto" else CALL.removeprefix("I look.\n")

    with serving_script(script, settings_of(template, tmp_path)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        card: Any = client.models.list().data[0]
        assert (card.tools, card.tool_format) == (True, "generic")
        messages: list[Any] = [{"role": "user", "content": "What does it cost?"}]
        first = client.chat.completions.create(
            model="reprise-demo", messages=messages, tools=TOOLS, tool_choice=choice
        )
        (call,) = first.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("read", {"path": "shop.py"})
        assert first.choices[0].message.content == ("I look." if choice == "auto" else None)
        messages += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "price = 8"},
        ]
        second = client.chat.completions.create(model="reprise-demo", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "It costs 8."
    assert first.usage
    assert second.usage
    assert second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1


# The comment keeps the line break before it.
TELLS = "{{ mode | default('plain') }}{% for one in messages %} {{ one.content }}{% endfor %}"
TELLS += ANSWER_BEGINS + "{##}"


@pytest.mark.parametrize("own", [None, {"mode": "asked"}])
@pytest.mark.parametrize("given", [None, {"mode": "set"}])
def test_variables_for_the_template_hold_in_all_apis_and_a_request_overrides_them(
    given: Any, own: Any, tmp_path: Path
):
    (tmp_path / "tells.jinja").write_text(TELLS)
    settings = recording(
        tmp_path, chat_template=str(tmp_path / "tells.jinja"), chat_template_kwargs=given, allow_load=False
    )
    hello = [{"role": "user", "content": "hello"}]
    more = {"chat_template_kwargs": own} if own else {}
    chat = {"messages": hello, **more}
    with (
        serving_script(lambda _: "Done.", settings) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):

        def post(path: str, body: dict[str, Any]) -> Any:
            response = client.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json()

        post("/v1/chat/completions", chat)
        post("/v1/responses", {"input": "hello", **more})
        post("/v1/messages", {**chat, "max_tokens": 9})
        if not own:
            post("/api/chat", {"messages": hello, "stream": False})
        tokens = post("/tokenize", chat)["tokens"]
        text = post("/detokenize", {"tokens": tokens})["content"]
        counted = post("/v1/messages/count_tokens", {"messages": hello})["input_tokens"]
        assert own or counted == len(tokens)
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "turns").read_text().splitlines()]
    assert {*prompts, text} == {f"{(own or given or {'mode': 'plain'})['mode']} hello<|im_start|>assistant\n"}
    assert len(prompts) == (3 if own else 4)
