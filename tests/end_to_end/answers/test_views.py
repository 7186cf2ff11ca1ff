"""An agent's chats, whose results show numbered files: with drafts from views every answer is the same."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

CODE = "".join(f"def area_{name}(width, height):\n    return width * height\n\n\n" for name in "abcd")
NUMBERED = "".join(f"{at:6}→{line}\n" for at, line in enumerate(CODE.splitlines(), 1))
KEYS = ("path", "old_string", "new_string")
SCHEMA = {"type": "object", "properties": {key: {"type": "string"} for key in KEYS}, "required": [*KEYS]}
ASKED = "Rename width to breadth in a.py."
CALL = {"name": "read", "arguments": '{"path": "a.py"}'}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.py"}}
SAMPLINGS = pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}])


def chat(**fields):
    calls = [{"id": "call_1", "type": "function", "function": CALL}]
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": NUMBERED},
    ]
    tool = {"type": "function", "function": {"name": "edit", "description": "Edit.", "parameters": SCHEMA}}
    return {"messages": messages, "tools": [tool], "max_tokens": 80, "logprobs": True, **fields}


def message(**fields):
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": NUMBERED}]},
    ]  # fmt: skip
    tool = {"name": "edit", "description": "Edit.", "input_schema": SCHEMA}
    return {"messages": messages, "tools": [tool], "max_tokens": 80, **fields}


def response(**fields):
    items = [
        {"role": "user", "content": ASKED},
        {"type": "function_call", "call_id": "c1", **CALL},
        {"type": "function_call_output", "call_id": "c1", "output": NUMBERED},
    ]
    tool = {"type": "function", "name": "edit", "description": "Edit.", "parameters": SCHEMA, "strict": False}
    return {"input": items, "tools": [tool], "max_output_tokens": 80, "store": False, **fields}


APIS = {
    "chat": ("/v1/chat/completions", chat, lambda answer: answer["choices"]),
    "messages": ("/v1/messages", message, lambda answer: answer["content"]),
    "responses": ("/v1/responses", response, lambda answer: answer["output"]),
}


@pytest.fixture
def http(server_url):
    with httpx.Client(base_url=server_url, timeout=120) as made:
        yield made


def ask(http, api, draft_type, **fields):
    path, make, said = APIS[api]
    body = {"model": "demo", "draft": {"type": draft_type}, **make(**fields)}
    answer = http.post(path, json=body).raise_for_status().json()
    return without_ids(said(answer)), answer.get("timings")


def without_ids(said):
    """Return what was said, but for the ids that every answer has of its own."""
    if isinstance(said, list):
        return [without_ids(one) for one in said]
    if isinstance(said, dict):
        return {key: without_ids(one) for key, one in said.items() if key not in ("id", "call_id")}
    return said


@pytest.mark.parametrize("api", APIS)
@SAMPLINGS
def test_views_change_no_answer(http, api, sampling):
    sampling = sampling if api == "messages" else {**sampling, "seed": 7}
    if api == "messages" and sampling["temperature"]:
        pytest.skip("the Messages API has no seed")
    plain, _ = ask(http, api, "none", **sampling)
    for draft_type in ("suffix", "auto", "suffix"):
        drafted, _ = ask(http, api, draft_type, **sampling)
        assert drafted == plain


def test_eight_at_once_get_what_each_gets_alone(http):
    alone = [ask(http, "chat", "none", seed=seed)[0] for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda seed: ask(http, "chat", "suffix", seed=seed)[0], range(8))
    assert [*together] == alone
