"""Every kind of part, of every role, at every place, in every API: none is refused in history, none a 500."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_core import to_json

from reprise.server.anthropic_api.schemas import MessagesRequest, to_chat_request
from reprise.server.errors import BadRequestError
from reprise.server.openai_api.responses.items import to_chat
from reprise.server.openai_api.responses.schemas import ResponsesRequest
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.json_body import parse_liberally
from reprise.server.requests.messages import LEFT_OUT, MEDIA, ROLES, TEXTS

VALUES: tuple[Any, ...] = (None, 5, True, "x", "", [], ["x"], {}, {"type": "text", "text": "x"}, {"url": "x"})
KEYS = ("text", "content", "source", "file", "input", "name", "id", "call_id", "tools", "role", "arguments")
OTHERS = (
    *("tool_use", "tool_result", "thinking", "server_tool_use", "web_search_tool_result", "mcp_tool_use"),
    *(
        "mcp_tool_result",
        "search_result",
        "compaction",
        "code_execution_tool_result",
        "nobody_knows",
        "",
        "message",
    ),
    *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"),
    *("web_search_call", "computer_call", "computer_call_output", "local_shell_call", "tool_search_output"),
    *("additional_tools", "image_generation_call", "mcp_call", "program", "program_output"),
)
FIELDS = ("tool_calls", "function_call", "refusal", "reasoning_content", "name", "tool_call_id", "audio")
CALLS: tuple[Any, ...] = (
    *VALUES,
    [{}],
    [5],
    [{"id": None, "function": {"name": "f", "arguments": '{"a'}}],
    [{"id": [], "type": "function", "function": {"name": 5, "arguments": 5}}],
    [{"function": "x"}],
    [{"custom": {"name": "x", "input": 5}}],
    {"id": "c", "function": {"name": "f", "arguments": "{}"}},
)
KINDS = sorted({*TEXTS, *MEDIA, *LEFT_OUT, *OTHERS})
ROLE_VALUES: tuple[Any, ...] = (*sorted(ROLES), "robot", None, 5, [])
ODD: tuple[Any, ...] = (
    *VALUES,
    [[]],
    [[["x"]]],
    1.5,
    {"type": 5},
    {"type": ["text"]},
    {"type": None},
    {"a": {"b": "c"}},
)


def parts() -> Iterator[Any]:
    """Yield parts of every kind: bare, and with each key holding values of every type."""
    yield from ODD
    for kind in KINDS:
        yield {"type": kind}
        yield from ({"type": kind, key: value} for key, value in itertools.product(KEYS, VALUES))


def at_every_place(one: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield conversations that have a message first, in the middle, last and only."""
    user, said = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi."}
    yield "first", [one, said, user]
    yield "middle", [user, one, said, user]
    yield "last", [user, said, one]
    yield "only", [one]


def ask_chat(messages: list[Any]) -> ChatRequest:
    return parse_liberally(to_json({"messages": messages}), ChatRequest, {}, Notes())


def ask_messages(messages: list[Any]) -> ChatRequest:
    return to_chat_request(
        parse_liberally(to_json({"messages": messages, "max_tokens": 9}), MessagesRequest, {}, Notes()),
        Notes(),
    )


def ask_responses(items: list[Any]) -> ChatRequest:
    body = parse_liberally(to_json({"input": items}), ResponsesRequest, {}, Notes())
    return to_chat(body, (), body.input, Notes())


APIS = {"chats": ask_chat, "messages": ask_messages, "responses": ask_responses}


def answered(api: str, place: str, messages: list[Any]) -> ChatRequest | None:
    """Ask, check that what is refused may be, and return what a template would be given."""
    try:
        chat = APIS[api](messages)
    except BadRequestError as fault:
        is_media = fault.code == "unsupported_content_part" and place in ("last", "only")
        # Of one item that is left out no prompt can be made.
        if is_media or (api, place) == ("responses", "only"):
            return None
        raise
    json.dumps([message.for_template() for message in chat.messages])
    return chat


@pytest.mark.parametrize("api", APIS)
def test_parts_of_every_kind_are_answered_at_every_place(api: str):
    for number, part in enumerate(parts()):
        content = part if number % 3 else [part]
        place, messages = list(at_every_place({"role": "user", "content": content}))[number % 7 % 4]
        chat = answered(api, place, messages)
        kind = part.get("type") if isinstance(part, dict) else None
        assert chat is not None or (isinstance(kind, str) and kind in MEDIA)
        if chat is not None and place == "last":
            assert not chat.continue_final_message
            assert chat.messages[-1].role in ("user", "tool")


@pytest.mark.parametrize("api", APIS)
def test_parts_and_fields_of_every_role_are_answered(api: str):
    some = random.Random(1).sample(list(parts()), 120)
    for role in ROLE_VALUES:
        contents = [{"role": role, "content": [part]} for part in some]
        fields = [{"role": role, "content": None, key: value} for key in FIELDS for value in CALLS]
        for one in (*contents, *fields):
            says_nothing = all(value is None for key, value in one.items() if key != "audio")
            is_message = isinstance(role, str | None) and not says_nothing
            for place, messages in at_every_place(one):
                if is_message or api == "responses":
                    answered(api, place, messages)
                    continue
                with pytest.raises(BadRequestError):
                    APIS[api](messages)


def test_items_of_every_kind_are_answered():
    for number, part in enumerate(parts()):
        place, messages = list(at_every_place(part))[number % 7 % 4]
        answered("responses", place, messages)


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://example.com/a.png"}}


@pytest.mark.parametrize("parts", [[IMAGE], [{"type": "text", "text": "See:"}, IMAGE]])
def test_a_prefill_that_ends_with_an_image_is_not_continued(parts: list[Any]):
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": parts}]
    chat = ask_messages(messages)
    assert chat.messages[-1].text.endswith("[image: this model reads text]")
    assert chat.prompt_end == "answer"
    with pytest.raises(BadRequestError, match="continue_final_message"):
        parse_liberally(
            to_json({"messages": messages, "continue_final_message": True}), ChatRequest, {}, Notes()
        )


def test_newest_words_that_are_left_out_do_not_make_the_answer_before_a_prefill():
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi."}]
    for content in ([], None, [{"type": "container_upload", "file_id": "f"}]):
        chat = ask_messages([*said, {"role": "user", "content": content}])
        assert (chat.messages[-1].role, chat.prompt_end) == ("user", "answer")
