"""Every invalid request gets OpenAI's error object and never reaches the engine."""

import json
from dataclasses import replace

import pytest

from reprise.server.errors import BadRequestError
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.json_body import parse_liberally
from tests.server.openai_shapes import assert_error

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG_CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps({"a": "x" * 9_992})},
}
HELLO = [{"role": "user", "content": "hello"}]
LONG = "x" * 1001


def _call(arguments):
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


EITHER = [
    # (fields, param, code, part of the message)
    ({"max_tokens": -5}, "max_tokens", "invalid_value", "at least"),
    ({"max_tokens": 10**30}, "max_tokens", "invalid_value", "at most 2147483647"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type", "must be an integer, not a decimal number"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type", "must be an integer, not a string"),
    ({"max_tokens": True}, "max_tokens", "invalid_type", "must be an integer, not a boolean"),
    ({"temperature": 2.1}, "temperature", "invalid_value", "at most 2"),
    ({"temperature": -0.1}, "temperature", "invalid_value", "at least 0"),
    ({"temperature": "1"}, "temperature", "invalid_type", "must be a number, not a string"),
    ({"temperature": False}, "temperature", "invalid_type", "must be a number, not a boolean"),
    ({"temperature": 10**30}, "temperature", "invalid_value", "at most 2"),
    ({"temperature": 10**400}, "temperature", "invalid_type", "is too large"),
    ({"temperature": [1]}, "temperature", "invalid_type", "must be a number, not an array"),
    ({"top_p": 1.01}, "top_p", "invalid_value", "at most 1"),
    ({"top_p": -1}, "top_p", "invalid_value", "at least 0"),
    ({"top_k": -2}, "top_k", "invalid_value", "at least -1"),
    ({"top_k": 10**30}, "top_k", "invalid_value", "at most"),
    ({"top_k": 1.0}, "top_k", "invalid_type", "must be an integer"),
    ({"min_p": 2}, "min_p", "invalid_value", "at most 1"),
    ({"seed": 2**63}, "seed", "invalid_value", "at most"),
    ({"seed": -(2**63) - 1}, "seed", "invalid_value", "at least"),
    ({"seed": 10**30}, "seed", "invalid_value", "at most"),
    ({"seed": 1.0}, "seed", "invalid_type", "must be an integer"),
    ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value", "at most 2"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "invalid_value", "at least -2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value", "at least 0.01"),
    ({"repetition_penalty": -1}, "repetition_penalty", "invalid_value", "at least 0.01"),
    ({"stop": 5}, "stop", "invalid_type", "must be a string or an array of strings"),
    ({"stop": [5]}, "stop[0]", "invalid_type", "must be a string"),
    ({"stop": ["a", None]}, "stop[1]", "invalid_value", "'stop[1]' is empty, which ends no answer."),
    ({"stop": ""}, "stop", "invalid_value", "'stop' is empty, which ends no answer."),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value", "'stop[1]' is empty, which ends no answer."),
    ({"stop": LONG}, "stop", "invalid_value", "has 1001 characters"),
    ({"n": 0}, "n", "invalid_value", "at least 1"),
    ({"n": 9}, "n", "invalid_value", "'n' is 9; at most 8 choices are allowed"),
    ({"n": 10**30}, "n", "invalid_value", "at most"),
    ({"stream": "true"}, "stream", "invalid_type", "must be a boolean, not a string"),
    ({"stream": 1}, "stream", "invalid_type", "must be a boolean, not an integer"),
    ({"stream_options": {}}, "stream_options", "invalid_value", "only with stream: true"),
    (
        {"stream": True, "stream_options": {"a": 1}},
        "stream_options.a",
        "unknown_parameter",
        "Unknown parameter",
    ),
    ({"stream": True, "stream_options": []}, "stream_options", "invalid_type", "not an array"),
    ({"logit_bias": []}, "logit_bias", "invalid_type", "must be an object"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a", "invalid_value", "must be a token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "invalid_value", "must be a token id"),
    ({"logit_bias": {"1_0": 1}}, "logit_bias.1_0", "invalid_value", "must be a token id"),
    ({"logit_bias": {"٣": 1}}, "logit_bias.٣", "invalid_value", "must be a token id"),
    (
        {"logit_bias": {"256": 1}},
        "logit_bias",
        "invalid_token_id",
        "token id 256 is outside the vocabulary of 256",
    ),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value", "between -100 and 100"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5", "invalid_type", "must be a number"),
    ({"logit_bias": {"5": True}}, "logit_bias.5", "invalid_type", "must be a number"),
    ({"logit_bias": {"5": None}}, "logit_bias.5", "invalid_type", "must be a number"),
    ({"model": 5}, "model", "invalid_type", "must be a string, not an integer"),
    ({"draft": "suffix"}, "draft", "invalid_type", "not a string"),
    ({"draft": {"type": "magic"}}, "draft.type", "invalid_value", "'auto', 'none', 'ngram-simple', "),
    ({"draft": {"type": 5}}, "draft.type", "invalid_value", "'auto', 'none', 'ngram-simple', "),
    (
        {"draft": {"type": "draft-model"}},
        "draft.type",
        "no_draft_model",
        "start the server with --draft-model",
    ),
    (
        {"draft": {"type": "mtp"}},
        "draft.type",
        "no_draft_model",
        "serves no model with an MTP head; use one of",
    ),
    (
        {"draft": {"type": "eagle3"}},
        "draft.type",
        "no_draft_model",
        "has no EAGLE-3 head; use one of",
    ),
    (
        {"draft": {"type": "dflash"}},
        "draft.type",
        "no_draft_model",
        "with --draft-model and the folder of one",
    ),
    ({"draft": {"max_tokens": -1}}, "draft.max_tokens", "invalid_value", "at least 0"),
    ({"draft": {"max_tokens": 256}}, "draft.max_tokens", "invalid_value", "at most 255"),
    ({"draft": {"max_tokens": True}}, "draft.max_tokens", "invalid_type", "not a boolean"),
    ({"draft": {"max_tokens": 2.0}}, "draft.max_tokens", "invalid_type", "must be an integer"),
    ({"draft": {"model": "x"}}, "draft.model", "unknown_parameter", "Unknown parameter"),
    ({"max_token": 5}, "max_token", "unknown_parameter", "Unknown parameter"),
    ({"max_token": None}, "max_token", "unknown_parameter", "Unknown parameter"),
]

CHAT_ONLY = [
    ({"messages": None}, "messages", "missing_required_parameter", "Missing required parameter: 'messages'."),
    ({"messages": []}, "messages", "invalid_value", "at least 1 item"),
    ({"messages": "hello"}, "messages", "invalid_type", "not a string"),
    (
        {"messages": ["hello"]},
        "messages[0]",
        "unsupported_content_part",
        "the model is shown text",
    ),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value", "'user'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value", "is missing"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        {"messages": [{"role": "user", "content": {}}]},
        "messages[0].content",
        "invalid_value",
        "is not in the form",
    ),
    (
        {"messages": [{"role": "user", "content": ["x"]}]},
        "messages[0].content[0]",
        "invalid_value",
        "is not in the form",
    ),
    (
        {
            "messages": [
                *HELLO,
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
            ]
        },
        "messages[1].content[0]",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]},
        "messages[0].content[1]",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0]",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "mood": 1}]},
        "messages[0].mood",
        "unknown_parameter",
        "mood",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": _call("{}")["tool_calls"]}]},
        "messages[0].tool_calls",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        {"messages": [_call("{")]},
        "messages[0].tool_calls[0].function.arguments",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        {"messages": [_call("[1]")]},
        "messages[0].tool_calls[0].function.arguments",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        {"messages": [_call("[" * 9000)]},
        "messages[0].tool_calls[0].function.arguments",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        {"messages": [_call("{}"), {"role": "tool", "content": "x", "tool_call_id": "c2"}]},
        "messages[1]",
        "invalid_value",
        "answers no call",
    ),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages[0]",
        "invalid_value",
        "answers no call",
    ),
    (
        {"messages": [{"role": "user", "content": LONG}]},
        "messages",
        "context_length_exceeded",
        "has 1008 tokens",
    ),
    (
        {"max_tokens": 5, "max_completion_tokens": 6},
        "max_completion_tokens",
        "invalid_value",
        "is larger than the other",
    ),
    (
        {"chat_template_kwargs": {"tokenize": False}},
        "chat_template_kwargs.tokenize",
        "invalid_value",
        "is reserved",
    ),
    (
        {"chat_template_kwargs": {"chat_template": "x"}},
        "chat_template_kwargs.chat_template",
        "invalid_value",
        "is reserved",
    ),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs", "invalid_type", "not an integer"),
    ({"prediction": "x"}, "prediction", "invalid_type", "not a string"),
    ({"prediction": {}}, "prediction.type", "missing_required_parameter", "prediction.type"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type", "invalid_value", "'content'"),
    ({"prediction": {"type": "content"}}, "prediction.content", "missing_required_parameter", "content"),
    (
        {"prediction": {"type": "content", "content": 5}},
        "prediction.content",
        "invalid_type",
        "must be a string or an array of text parts",
    ),
    (
        {"prediction": {"type": "content", "content": "x", "n": 1}},
        "prediction.n",
        "unknown_parameter",
        "Unknown",
    ),
    (
        {"prediction": {"type": "content", "content": "x" * 1000}},
        "prediction",
        "context_length_exceeded",
        "The prediction has 1000 tokens; the limit is 1000",
    ),
]

NOT_YET = [
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"audio": {"voice": "alloy"}}, "audio"),
    (COMPLETIONS, {"best_of": 3}, "best_of"),
]

COMPLETIONS_ONLY = [
    ({"prompt": None}, "prompt", "missing_required_parameter", "Missing required parameter"),
    ({"prompt": ""}, "prompt", "invalid_value", "The prompt is empty"),
    ({"prompt": []}, "prompt", "invalid_value", "is empty"),
    ({"prompt": ["a", ""]}, "prompt", "invalid_value", "The prompt is empty"),
    ({"prompt": [[]]}, "prompt[0]", "invalid_value", "is empty"),
    ({"prompt": 5}, "prompt", "invalid_type", "must be a string, an array"),
    ({"prompt": {}}, "prompt", "invalid_type", "must be a string, an array"),
    ({"prompt": [None]}, "prompt[0]", "invalid_type", "must be a string"),
    ({"prompt": ["a", 5]}, "prompt[1]", "invalid_type", "must be a string or an array of token ids"),
    ({"prompt": [5, "a"]}, "prompt[1]", "invalid_type", "must be a token id"),
    ({"prompt": [5, True]}, "prompt[1]", "invalid_type", "must be a token id"),
    ({"prompt": [True]}, "prompt[0]", "invalid_type", "must be a token id"),
    ({"prompt": [1.0]}, "prompt[0]", "invalid_type", "must be a token id"),
    ({"prompt": [[5], [5.5]]}, "prompt[1][0]", "invalid_type", "must be a token id"),
    (
        {"prompt": [5, 256]},
        "prompt[1]",
        "invalid_token_id",
        "token id 256 is outside the vocabulary of 256 tokens",
    ),
    ({"prompt": [-1]}, "prompt[0]", "invalid_token_id", "token id -1"),
    ({"prompt": [[5], [5, 10**30]]}, "prompt[1][1]", "invalid_token_id", "far too large"),
    ({"prompt": ["a"] * 65}, "prompt", "invalid_value", "has 65 entries; at most 64"),
    ({"prompt": "x" * 1000}, "prompt", "context_length_exceeded", "has 1000 tokens; the limit is 1000"),
    ({"messages": HELLO}, "messages", "unknown_parameter", "Unknown parameter"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction", "unknown_parameter", "Unknown"),
]

CASES = [
    *((CHAT, {"messages": HELLO, **fields}, *told) for fields, *told in EITHER + CHAT_ONLY),
    *((COMPLETIONS, {"prompt": "a", **fields}, *told) for fields, *told in EITHER + COMPLETIONS_ONLY),
    *(
        (
            path,
            {"messages": HELLO, **fields} if path == CHAT else {"prompt": "a", **fields},
            param,
            "unsupported_parameter",
            "supported",
        )
        for path, fields, param in NOT_YET
    ),
]


@pytest.fixture
def settings(settings):
    return replace(settings, unknown_fields="refuse")


@pytest.mark.parametrize(("path", "body", "param", "code", "part"), CASES, ids=lambda value: repr(value)[:60])
async def test_a_wrong_field_is_a_400_that_names_it(client, engine, path, body, param, code, part):
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert part in assert_error(response.json(), param, code)
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"messages": [}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"temperature": -Infinity}', "invalid_json"),
        (b'{"temperature": 0x10}', "invalid_json"),
        (b'{"temperature": 1e999}', "invalid_json"),
        (b'{"metadata": {"a": [{"b": -1e400}]}}', "invalid_json"),
        (b'{"user": "\\ud800"}', "invalid_json"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "invalid_json"),
        (b'{"a": ' + b"[" * 50_000 + b"]" * 49_000 + b"}", "json_too_deep"),
        (b'{"user": "\xff"}', "invalid_utf8"),
        (b'{"user": "\xc3"}', "invalid_utf8"),
        (b"\xff\xfe{\x00}\x00", "invalid_utf8"),
        (b"[]", "invalid_type"),
        (b"null", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b"5", "invalid_type"),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_body_that_is_not_a_json_object_is_a_400(client, engine, path, raw, code):
    response = await client.post(path, content=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert_error(response.json(), None, code)
    assert engine.requests == []


async def test_a_very_long_unknown_name_is_shortened_in_the_error(client):
    response = await client.post(COMPLETIONS, json={"prompt": "a", "x" * 10_000: 1})
    assert response.status_code == 400
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        (None, 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
async def test_only_json_is_read(client, content_type, status):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = await client.post(COMPLETIONS, content=json.dumps({"prompt": "a"}), headers=headers)
    assert response.status_code == status
    if status != 200:
        assert_error(response.json(), None, "unsupported_content_type")


@pytest.mark.parametrize(
    "told",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example", "Content-Type": ""},
    ],
)
async def test_a_web_page_that_posts_without_a_type_is_refused(client, engine, told):
    response = await client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=told)
    assert response.status_code == 415
    assert_error(response.json(), None, "unsupported_content_type")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/models", 404, "unknown_url"),
        ("POST", "/v1/images/generations", 404, "unknown_url"),
        ("POST", "/chat/complete", 404, "unknown_url"),
        ("GET", "/docs", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models/alias", 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
    ],
)
async def test_an_unknown_endpoint_is_an_error_object_too(client, method, path, status, code):
    response = await client.request(method, path)
    assert response.status_code == status
    message = assert_error(response.json(), None, code)
    assert path in message
    if status == 405:
        assert response.headers["allow"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x" * 10_000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 10_000}]}, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": [LONG_CALL]}]}, "messages"),
        (
            CHAT,
            {"messages": HELLO, "prediction": {"type": "content", "content": "x" * 10_000}},
            "prediction",
        ),
    ],
)
async def test_text_that_cannot_fit_is_refused_without_encoding_it(client, engine, path, body, param):
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert_error(response.json(), param, "context_length_exceeded")
    assert "at least 5000 tokens; the limit is 1000" in response.json()["error"]["message"]
    assert engine.tokenizer.rendered == []
    assert engine.tokenizer.encoded_answers == []


def test_logit_bias_has_a_limit():
    biases = {str(token): 0 for token in range(16_385)}
    body = json.dumps({"prompt": "a", "logit_bias": biases}).encode()
    with pytest.raises(BadRequestError, match=r"'logit_bias' has 16385 entries; at most 16384 are allowed"):
        parse_liberally(body, CompletionRequest, {}, Notes(refuses=True))
