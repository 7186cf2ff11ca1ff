"""Every parameter of the SDKs' typed calls, once: none is refused unless the answer would be another one."""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import anthropic
import openai
import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as CompletionParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from typing_extensions import is_typeddict

MAX_DEPTH = 5
"""Types that hold themselves, such as filters, are cut off here."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
HELLO = [{"role": "user", "content": "Hello!"}]
FUNCTION = {"name": "look", "description": "Look.", "parameters": SCHEMA}
VENDORS = [
    {"type": kind} for kind in ("file_search", "mcp", "programmatic_tool_calling", "apply_patch", "shell")
]
"""Tools that only a vendor could run; a choice of one is left out with them."""
BASES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "demo",
        "messages": HELLO,
        "max_tokens": 4,
        "tools": [{"type": "function", "function": FUNCTION}],
        "logprobs": True,
    },
    "completions": {"model": "demo", "prompt": "def", "max_tokens": 4},
    "responses": {
        "model": "demo",
        "input": "Hello!",
        "max_output_tokens": 4,
        "tools": [{"type": "function", "strict": False, **FUNCTION}, *VENDORS],
    },
    "input_tokens": {
        "model": "demo",
        "input": "Hello!",
        "tools": [{"type": "function", **FUNCTION}, *VENDORS],
    },
    "messages": {
        "model": "demo",
        "messages": HELLO,
        "max_tokens": 4,
        "tools": [{"name": "look", "input_schema": SCHEMA}],
    },
    "count_tokens": {
        "model": "demo",
        "messages": HELLO,
        "tools": [{"name": "look", "input_schema": SCHEMA}],
    },
}
"""For each call: a request that every parameter is added to."""
PARAMETERS = {
    "chat": ChatParams,
    "completions": CompletionParams,
    "responses": ResponseCreateParamsNonStreaming,
    "input_tokens": InputTokenCountParams,
    "messages": MessageCreateParamsNonStreaming,
    "count_tokens": MessageCountTokensParams,
}
MEANT: dict[str, Any] = {
    "name": "look",
    "schema": SCHEMA,
    "parameters": SCHEMA,
    "input_schema": SCHEMA,
    "logit_bias": {"5": 1},
    "definition": "a+",
    "syntax": "regex",
    "data": "aGVsbG8=",
    "arguments": '{"a": "b"}',
    "url": "https://example.com/a",
    "budget_tokens": 2,
    "model": "demo",
    "n": 1,
    "best_of": 1,
    "top_k": 5,
    "metadata": {"a": "b"},
}
"""Values that a type alone does not tell, by the name of a parameter or key."""
REFUSED = {
    "responses": {
        "conversation": "a vendor's stored conversation, which is not here: its text would be missing",
        "previous_response_id": "the id of a response that nobody made",
        "prompt": "a vendor's stored prompt, which is not here",
    },
    "input_tokens": {
        "conversation": "as for responses",
        "previous_response_id": "as for responses",
    },
    "completions": {"suffix": "the bundled model cannot fill in, so the answer would not fit before it"},
}
"""What is refused, by call and parameter, and why: without it the answer would be another one."""


def values(kind: Any, name: str, depth: int = 0) -> Iterator[Any]:
    """Yield a value of each alternative of a type; none of a type that cannot be sent as JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if name in MEANT:
        yield MEANT[name]
    elif origin in (Required, NotRequired, Annotated):
        yield from values(arguments[0], name, depth)
    elif origin in (Union, types.UnionType):
        for one in arguments:
            yield from values(one, name, depth)
    elif origin is Literal:
        yield arguments[0]
    elif is_typeddict(kind):
        yield from objects(kind, depth)
    elif origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        is_tool = arguments[1] is object
        yield (
            {"type": "function", "name": "look"}
            if is_tool
            else {"a": next(values(arguments[1], "", depth + 1))}
        )
    elif origin is not None and depth < MAX_DEPTH:
        if entries := list(values(arguments[0], "", depth + 1)):
            yield entries
    elif kind in (str, int, float, bool, object, Any):
        yield {str: "low", int: 1, float: 0.5, bool: True}.get(kind, "low")


def objects(kind: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Yield an object with all keys of a type; for each alternative of a key there is one."""
    if depth >= MAX_DEPTH:
        return
    hints = get_type_hints(kind, include_extras=True)
    found = {key: list(values(hint, key, depth + 1)) for key, hint in hints.items()}
    present = {key: alternatives for key, alternatives in found.items() if alternatives}
    num = max((len(alternatives) for alternatives in present.values()), default=0)
    for at in range(max(num, 1)):
        yield {key: alternatives[at % len(alternatives)] for key, alternatives in present.items()}


def calls(url: str) -> dict[str, Callable[..., Any]]:
    """The calls of both SDKs, which check the answers against their types."""
    strict = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
    one = openai.OpenAI(base_url=f"{url}/v1", **strict)
    other = anthropic.Anthropic(base_url=url, **strict)
    return {
        "chat": one.chat.completions.create,
        "completions": one.completions.create,
        "responses": one.responses.create,
        "input_tokens": one.responses.input_tokens.count,
        "messages": other.messages.create,
        "count_tokens": other.messages.count_tokens,
    }


def refusal(call: Callable[..., Any], request: dict[str, Any]) -> str | None:
    """Send a request; return what the server said if it refused it."""
    try:
        call(**request)
    except (openai.BadRequestError, openai.NotFoundError, anthropic.BadRequestError) as fault:
        return str(fault)
    return None


LONG = ("messages", "responses")
"""Calls with so many parameters and alternatives that they take a while."""
EACH = [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in PARAMETERS]


@pytest.mark.parametrize("name", EACH)
def test_no_parameter_is_refused_that_does_not_change_the_answer(server_url, name):
    call, refused, num = calls(server_url)[name], {}, 0
    for parameter, kind in get_type_hints(PARAMETERS[name], include_extras=True).items():
        for value in values(kind, parameter):
            num += 1
            if (told := refusal(call, BASES[name] | {parameter: value})) is not None:
                refused.setdefault(parameter, (value, told))
    assert num >= 12
    assert refused.keys() == REFUSED.get(name, {}).keys(), {
        parameter: fault for parameter, fault in refused.items() if parameter not in REFUSED.get(name, {})
    }
