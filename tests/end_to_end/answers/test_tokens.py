"""/tokenize and /detokenize on the real server and the bundled model."""

import httpx
import pytest

TEXT = "def żółw(x): return '😀'"
HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def http(server_url):
    with httpx.Client(base_url=server_url, timeout=60) as made:
        yield made


def test_text_survives_the_way_there_and_back(http):
    answer = http.post("/tokenize", json={"content": TEXT}).json()
    assert answer["count"] == len(answer["tokens"]) > 0
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["content"] == TEXT


def test_the_pieces_are_the_text(http):
    shown = http.post("/tokenize", json={"content": TEXT, "with_pieces": True}).json()["tokens"]
    pieces = [token["piece"] for token in shown]
    said = b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces)
    assert said.decode() == TEXT
    assert any(isinstance(piece, list) for piece in pieces)


def test_a_prompt_of_tokens_is_the_prompt_of_text(http):
    tokens = http.post("/tokenize", json={"prompt": TEXT}).json()["tokens"]
    request = {"max_tokens": 4, "temperature": 0}
    of_text = http.post("/v1/completions", json={"prompt": TEXT, **request}).json()
    of_tokens = http.post("/v1/completions", json={"prompt": tokens, **request}).json()
    assert of_text["usage"]["prompt_tokens"] == len(tokens)
    assert of_text["choices"][0]["text"] == of_tokens["choices"][0]["text"]


def test_a_conversation_has_as_many_tokens_as_its_usage_says(http):
    counted = http.post("/tokenize", json={"messages": HELLO}).json()
    usage = http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1}).json()["usage"]
    assert counted["count"] == usage["prompt_tokens"]
    assert counted["max_model_len"] > counted["count"]
    rendered = http.post("/detokenize", json={"tokens": counted["tokens"]}).json()["content"]
    assert "Hello!" in rendered
    assert "<|im_start|>" in rendered


def test_a_client_learns_how_the_tokenizer_is_set_up(server_url):
    told = httpx.get(f"{server_url}/tokenizer_info").json()
    end = httpx.post(
        f"{server_url}/tokenize", json={"prompt": told["eos_token"], "add_special_tokens": False}
    )
    assert end.json()["count"] == 1
    assert "messages" in told["chat_template"]
    assert told["model_max_length"] == end.json()["max_model_len"]
