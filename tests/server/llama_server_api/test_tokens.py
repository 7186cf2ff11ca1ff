"""/tokenize and /detokenize, as clients of llama-server and of vLLM call them."""

from dataclasses import replace

import pytest

from tests.server.fake_engine import CONTEXT_TOKENS
from tests.server.openai_shapes import assert_error

HELLO = [{"role": "user", "content": "hello"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def settings(settings):
    return replace(settings, unknown_fields="refuse")


@pytest.mark.parametrize("name", ["content", "prompt"])
async def test_text_becomes_tokens_under_either_name(client, engine, name):
    answer = (await client.post("/tokenize", json={name: "żó"})).json()
    tokens = list("żó".encode())
    assert answer == {
        "tokens": tokens,
        "count": 4,
        "max_model_len": CONTEXT_TOKENS,
        "token_strs": None,
    }
    # Special tokens are added by default under vLLM's name, and not under llama-server's.
    assert engine.tokenizer.encoded_answers == (["żó"] if name == "content" else [])


@pytest.mark.parametrize(
    ("fields", "is_prompt"),
    [
        ({"content": "a", "add_special": True}, True),
        ({"content": "a", "add_special_tokens": True}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"prompt": "a", "add_special": False}, False),
    ],
    ids=str,
)
async def test_special_tokens_are_added_on_request(client, engine, fields, is_prompt):
    assert (await client.post("/tokenize", json=fields)).status_code == 200
    assert (not engine.tokenizer.encoded_answers) is is_prompt


async def test_pieces_that_are_part_of_a_character_are_bytes(client):
    answer = (await client.post("/tokenize", json={"content": "aż", "with_pieces": True})).json()
    first, second, third = "aż".encode()
    assert answer["tokens"] == [
        {"id": first, "piece": "a"},
        {"id": second, "piece": [second]},
        {"id": third, "piece": [third]},
    ]
    assert answer["count"] == 3


async def test_the_text_of_each_token_is_returned_on_request(client):
    answer = (await client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True})).json()
    assert (answer["tokens"], answer["token_strs"]) == ([97, 98], ["a", "b"])


async def test_a_conversation_has_the_tokens_of_its_prompt(client, engine):
    body = {"messages": HELLO, "tools": [LOOK], "chat_template_kwargs": {"enable_thinking": False}}
    answer = (await client.post("/tokenize", json=body)).json()
    await client.post("/v1/chat/completions", json=body)
    assert answer["tokens"] == list(engine.requests[0].prompt)
    assert engine.tokenizer.rendered[0] == engine.tokenizer.rendered[1]
    shown, shown_again = engine.tokenizer.rendered_tools
    assert shown
    assert shown == shown_again


async def test_tokens_become_the_text_that_they_came_from(client):
    tokens = (await client.post("/tokenize", json={"content": "zażółć 😀"})).json()["tokens"]
    answer = (await client.post("/detokenize", json={"tokens": tokens})).json()
    assert answer == {"content": "zażółć 😀", "prompt": "zażółć 😀"}
    assert (await client.post("/detokenize", json={"tokens": []})).json()["content"] == ""


async def test_an_empty_text_has_no_tokens(client):
    assert (await client.post("/tokenize", json={"content": ""})).json()["tokens"] == []


@pytest.mark.parametrize(
    ("path", "body", "param", "code", "told"),
    [
        ("/tokenize", {}, "content", "missing_required_parameter", "and so are prompt and messages"),
        ("/tokenize", {"content": "a", "prompt": "a"}, "prompt", "invalid_value", "cannot be combined"),
        ("/tokenize", {"content": 5}, "content", "invalid_type", "must be a string"),
        ("/tokenize", {"content": "x" * 5000}, "content", "context_length_exceeded", "the limit is 1000"),
        ("/tokenize", {"prompt": "x" * 5000}, "prompt", "context_length_exceeded", "the limit is 1000"),
        ("/tokenize", {"content": "a", "tools": [LOOK]}, "tools", "invalid_value", "only with messages"),
        (
            "/tokenize",
            {"content": "a", "chat_template_kwargs": {}},
            "chat_template_kwargs",
            "invalid_value",
            "only with messages",
        ),
        (
            "/tokenize",
            {"content": "a", "add_special": True, "add_special_tokens": False},
            "add_special",
            "invalid_value",
            "differ",
        ),
        (
            "/tokenize",
            {"messages": HELLO, "add_special": True},
            "add_special",
            "unsupported_value",
            "the chat template",
        ),
        ("/tokenize", {"content": "a", "colour": 1}, "colour", "unknown_parameter", "Unknown"),
        (
            "/tokenize",
            {"content": "a", "parse_special": False},
            "parse_special",
            "unsupported_parameter",
            "not supported",
        ),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "unsupported_content_part",
            "the model is shown text",
        ),
        ("/detokenize", {}, "tokens", "missing_required_parameter", "Missing"),
        ("/detokenize", {"tokens": "a"}, "tokens", "invalid_type", "must be an array"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", "invalid_type", "must be an integer"),
        ("/detokenize", {"tokens": [1, True]}, "tokens[1]", "invalid_type", "must be an integer"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]", "invalid_value", "at least 0"),
        ("/detokenize", {"tokens": [1, 256]}, "tokens[1]", "invalid_token_id", "vocabulary of 256"),
        ("/detokenize", {"tokens": [1] * 1001}, "tokens", "context_length_exceeded", "the limit is 1000"),
    ],
)
async def test_bad_input_is_a_400_that_names_the_field(client, path, body, param, code, told):
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert told in assert_error(response.json(), param, code)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_is_not_found(client, path):
    body = {"model": "other"} | ({"content": "a"} if path == "/tokenize" else {"tokens": []})
    response = await client.post(path, json=body)
    assert response.status_code == 404
    assert_error(response.json(), "model", "model_not_found")


async def test_the_tokenizer_is_described_as_vllm_does(client, engine):
    response = await client.get("/tokenizer_info")
    assert response.json() == {**engine.tokenizer.description, "model_max_length": 1000}
    assert response.json()["eos_token"] == "<end>"
