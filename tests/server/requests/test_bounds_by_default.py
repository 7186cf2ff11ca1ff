"""A bound that `--unknown-fields refuse` has, under which single rows are tested, holds by default too.

Bodies that are within the limits of size, and made to take long, take a time that grows with their size.
"""

import re
import time
from contextlib import suppress
from typing import Any

import pytest
from pydantic_core import to_json

from reprise.engine.text.templates.fit import merge, split_calls
from reprise.server.anthropic_api.schemas import MessagesRequest, to_chat_request
from reprise.server.errors import BadRequestError
from reprise.server.openai_api.responses.items import to_chat
from reprise.server.openai_api.responses.schemas import ResponsesRequest
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.json_body import MAX_CONTAINERS, parse_liberally
from reprise.server.requests.messages import arguments_of
from reprise.server.requests.tools import MAX_NAME_CHARACTERS, function_name
from tests.machine import allowed_s
from tests.server.anthropic_api import test_bad_input as messages_rows
from tests.server.openai_api.responses import test_bad_input as responses_rows
from tests.server.requests import test_bad_input as chat_rows
from tests.server.requests import test_tools as tools_rows

HELLO = [{"role": "user", "content": "hello"}]
ROWS: list[tuple[str, dict[str, Any], str]] = [
    *((path, body, part) for path, body, _, _, part in chat_rows.CASES),
    *(
        ("/v1/messages", {"max_tokens": 50, "messages": HELLO, **row[0]}, row[-1])
        for row in messages_rows.BAD
    ),
    *(("/v1/responses", {"input": "x", **row[0]}, row[-1]) for row in responses_rows.BAD),
    *(("/v1/chat/completions", {"messages": HELLO, **row[0]}, row[-1]) for row in tools_rows.BAD),
]
BOUND = re.compile(
    r"at (most|least) |1 to \d+|between|allowed|has \d+|outside|too (large|long)|limit is|reserved"
)
HARMLESS = ("draft", "prediction", "include", "top_logprobs", "truncation", "max_completion_tokens")
"""Fields that are left out if they are wrong: their bounds do not bind."""


async def test_every_bound_holds_by_default_and_what_is_not_refused_is_named(client):
    num_bounds, passed = 0, []
    for path, body, part in ROWS:
        response = await client.post(path, json=body)
        is_bound = bool(BOUND.search(part)) and not any(name in body for name in HARMLESS)
        is_named = "x-reprise-ignored" in response.headers
        num_bounds += is_bound
        if response.status_code not in (400, 404) and (is_bound or not is_named):
            passed.append((path, str(body)[:200], part))
    assert passed == []
    assert num_bounds > 60


def ask_chat(body: dict[str, Any]) -> None:
    parse_liberally(to_json(body), ChatRequest, {}, Notes())


def ask_messages(body: dict[str, Any]) -> None:
    to_chat_request(
        parse_liberally(to_json({"max_tokens": 9, **body}), MessagesRequest, {}, Notes()), Notes()
    )


def ask_responses(body: dict[str, Any]) -> None:
    read = parse_liberally(to_json(body), ResponsesRequest, {}, Notes())
    to_chat(read, (), read.input, Notes())


def calls(num: int) -> list[Any]:
    function = {"name": "f", "arguments": "{}"}
    return [{"id": f"c{index}", "type": "function", "function": function} for index in range(num)]


def results(num: int) -> list[Any]:
    return [{"role": "tool", "tool_call_id": f"c{index}", "content": "r"} for index in reversed(range(num))]


def nested(depth: int) -> Any:
    part: Any = {"type": "text", "text": "x"}
    for _ in range(depth):
        part = {"type": "document", "source": {"type": "content", "content": [part]}}
    return part


WIDE = {"type": "odd", "a": list(range(400_000))}
THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "x" * 4000}]}
REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x" * 4000}]}
SAID = {"role": "assistant", "tool_calls": calls(4000)}
BROUGHT = {"type": "additional_tools", "tools": [{"type": "function", "name": f"f {i}"} for i in range(20)]}
MANY_OBJECTS = '{"a": [' + "{}," * MAX_CONTAINERS + "{}]}"
HOSTILE = {
    "thoughts in a row": (ask_messages, {"messages": [*HELLO, *[THOUGHT] * 4095]}),
    "reasoning in a row": (ask_responses, {"input": [REASONING] * 4096}),
    "one role": (ask_messages, {"messages": HELLO * 4096}),
    "results in another order": (ask_chat, {"messages": [*HELLO, SAID, *results(4000)]}),
    "a wide part": (ask_chat, {"messages": [{"role": "user", "content": [WIDE]}]}),
    "a wide key": (ask_chat, {"messages": [{**HELLO[0], "k" * 10**7: 1}]}),
    "a wide type": (ask_chat, {"messages": [{"role": "user", "content": [{"type": "r" * 10**7}]}]}),
    "a wide item": (ask_responses, {"input": [{"type": "r" * 10**7, "a": 1}]}),
    "nested documents": (ask_messages, {"messages": [{"role": "user", "content": [nested(45)] * 1000}]}),
    "tools that items bring": (ask_responses, {"input": [BROUGHT] * 4000}),
    "a wide namespace": (
        ask_responses,
        {"input": [{"type": "function_call", "namespace": "f !" * 10**6, "name": "f", "arguments": "{}"}]},
    ),
    "arguments of many objects": (
        ask_responses,
        {"input": [{"type": "function_call", "name": "f", "arguments": MANY_OBJECTS}]},
    ),
    "a schema as text": (
        ask_chat,
        {"messages": HELLO, "tools": [{"function": {"name": "f", "parameters": MANY_OBJECTS * 4}}]},
    ),
    "a field as text": (ask_responses, {"input": "x", "text": MANY_OBJECTS * 4}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_takes_no_time_of_its_own(name: str):
    ask, body = HOSTILE[name]
    start_s = time.process_time()
    with suppress(BadRequestError):
        ask(body)
    assert time.process_time() - start_s < allowed_s(1)


def test_arguments_of_many_values_stay_text():
    assert arguments_of(MANY_OBJECTS, "at", Notes()) == {"input": MANY_OBJECTS}
    assert arguments_of('{"a": "' + "[" * 10**6 + '"}', "at", Notes()) == {"a": "[" * 10**6}


def test_names_of_calls_are_bounded():
    first, second = (function_name("n" * 10**7 + end, "f") for end in "ab")
    assert len(first) == len(second) == MAX_NAME_CHARACTERS
    assert first != second


def test_fitting_takes_time_that_grows_with_the_conversation():
    start_s = time.process_time()
    split_calls([SAID, *results(4000)])
    merge([{"role": "user", "content": "x" * 4000}] * 4096, {"user"}, joins_calls=True)
    assert time.process_time() - start_s < allowed_s(1)
