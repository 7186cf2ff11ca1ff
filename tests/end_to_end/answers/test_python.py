"""A model in Python gives the tokens that the server gives over HTTP, and the server gives its token ids."""

from collections.abc import Iterator

import httpx
import pytest

from reprise import LLM, SamplingParams
from tests.end_to_end.conftest import CONTEXT_TOKENS

CHAT = [
    {"role": "user", "content": 'Return the record of Ada as JSON.\n\n{"name": "Ada", "title": "sailor"}'}
]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
REQUESTS = [
    (CHAT, {"temperature": 0}, {}),
    (CHAT, {"seed": 1}, {}),
    (CHAT, {"seed": 2, "top_p": 0.9, "frequency_penalty": 0.5}, {"reasoning_effort": "none"}),
    (CHAT, {"seed": 3, "json_schema": SCHEMA}, {}),
    (CHAT, {"temperature": 0}, {"tools": [TOOL], "tool_choice": "required"}),
    ("Once upon a time", {"seed": 4, "stop": ["."], "draft": False}, {}),
    ([5, 6, 7, 8], {"seed": 5, "logit_bias": {9: 3.0}, "min_tokens": 4}, {}),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(progress=False, max_context_tokens=CONTEXT_TOKENS) as made:
        yield made


@pytest.mark.parametrize(("prompt", "params", "fields"), REQUESTS)
def test_the_same_request_has_the_same_tokens_as_over_http(llm, server_url, prompt, params, fields):
    own = SamplingParams(max_tokens=40, **params)
    is_chat = prompt is CHAT
    here = llm.chat(prompt, own, **fields) if is_chat else llm.generate(prompt, own, **fields)
    body = {"max_tokens": 40, "return_token_ids": True, **params, **fields}
    if "json_schema" in body:
        named = {"name": "record", "schema": body.pop("json_schema")}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if body.pop("draft", True) is False:
        body["draft"] = {"type": "none"}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    body["messages" if is_chat else "prompt"] = prompt
    answer = httpx.post(f"{server_url}{path}", json=body, timeout=120).json()
    (choice,) = answer["choices"]
    assert here.token_ids == choice["token_ids"]
    assert here.prompt_token_ids == (answer if is_chat else choice)["prompt_token_ids"]
    assert here.finish_reason == choice["finish_reason"]
    assert here.text == ((choice["message"]["content"] or "") if is_chat else choice["text"])
    assert len(here.token_ids) == answer["usage"]["completion_tokens"]
