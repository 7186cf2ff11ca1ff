"""Requests that crash `mlx_lm.server` or that it serves wrongly without an error: here each is answered.

During and after each of them, other clients get the same answers as before.
"""

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTROL = {"model": "demo", "prompt": "The lantern is", "max_tokens": 20, "temperature": 0}
# The end token is forbidden, so that the answer is never empty.
PROMPT = {
    "model": "demo",
    "prompt": "Tell me about the lamp.",
    "max_tokens": 12,
    "temperature": 0,
    "logit_bias": {"2": -100},
}
MESSAGES = {"model": "demo", "messages": [{"role": "user", "content": "Tell me about the lamp."}]}


@pytest.fixture(scope="module")
def control(server_url):
    """What the control request says on a server that has nothing else to do."""
    return _say(server_url)


@pytest.fixture(autouse=True)
def _others_notice_nothing(server_url, control):
    """While and after each test, the control request is answered as ever."""
    is_over = threading.Event()

    def ask_on():
        said = [_say(server_url)]
        while not is_over.is_set():
            said.append(_say(server_url))
        return said

    with ThreadPoolExecutor(1) as others:
        asked = others.submit(ask_on)
        try:
            yield
        finally:
            is_over.set()
        assert set(asked.result()) == {control}
    assert _say(server_url) == control
    assert httpx.get(f"{server_url}/health").status_code == 200


def _say(url):
    return _post(url, COMPLETIONS, CONTROL)["choices"][0]["text"]


def _post(url, path, body, status=200):
    response = httpx.post(url + path, json=body, timeout=120)
    assert response.status_code == status, response.text
    return response.json()


def _refused(url, path, body, param):
    error = _post(url, path, body, 400)["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_a_prompt_that_is_cached_as_a_whole(server_url):
    body = PROMPT | {"prompt": "The lamp in the hall is on. " * 8}
    first, *later = (_post(server_url, COMPLETIONS, body)["choices"][0]["text"] for _ in range(3))
    assert later == [first, first]


def test_a_list_of_prompts(server_url):
    choices = _post(server_url, COMPLETIONS, PROMPT | {"prompt": ["a", "b"]})["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    alone = [_post(server_url, COMPLETIONS, PROMPT | {"prompt": one})["choices"][0] for one in "ab"]
    assert [choice["text"] for choice in choices] == [choice["text"] for choice in alone]


def test_an_empty_prompt(server_url):
    _refused(server_url, COMPLETIONS, PROMPT | {"prompt": ""}, "prompt")


def test_a_stop_that_is_no_string(server_url):
    _refused(server_url, COMPLETIONS, PROMPT | {"stop": [5]}, "stop[0]")


@pytest.mark.parametrize("top_k", ["as large as the vocabulary", 10**6])
def test_a_top_k_beyond_the_vocabulary(server_url, top_k):
    if isinstance(top_k, str):
        top_k = 4096
    body = PROMPT | {"temperature": 1.0, "seed": 7}
    unlimited = _post(server_url, COMPLETIONS, body)["choices"][0]["text"]
    assert _post(server_url, COMPLETIONS, body | {"top_k": top_k})["choices"][0]["text"] == unlimited


def test_a_bias_outside_of_the_vocabulary(server_url):
    _refused(server_url, COMPLETIONS, PROMPT | {"logit_bias": {"99999999": 1}}, "logit_bias")


def test_a_stop_string_that_begins_within_a_token(server_url):
    whole = _post(server_url, COMPLETIONS, PROMPT)["choices"][0]["text"]
    assert len(whole) > 8
    for start in range(1, 7):
        stop = whole[start : start + 2]
        choice = _post(server_url, COMPLETIONS, PROMPT | {"stop": stop})["choices"][0]
        assert choice["text"] == whole[: whole.index(stop)]
        assert choice["finish_reason"] == "stop"


def test_several_choices(server_url):
    body = PROMPT | {"n": 3, "temperature": 1.0, "seed": 7}
    choices = _post(server_url, COMPLETIONS, body)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) > 1


def test_a_response_format(server_url):
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "lamp", "schema": schema, "strict": True}}
    answer = _post(server_url, CHAT, MESSAGES | {"response_format": form})
    assert json.loads(answer["choices"][0]["message"]["content"])["on"] in (True, False)


def test_log_probabilities_in_a_stream(server_url):
    body = MESSAGES | {"stream": True, "logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    entries = []
    with httpx.stream("POST", server_url + CHAT, json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    entries += (choice["logprobs"] or {}).get("content") or []
    assert entries
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


def test_a_client_that_leaves_before_its_answer(server_url):
    body = MESSAGES | {"max_tokens": 1500, "n": 4, "logit_bias": {"2": -100}}
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(server_url + CHAT, json=body, timeout=httpx.Timeout(30, read=0.3))
    give_up_at = time.monotonic() + 240
    while (rows := httpx.get(f"{server_url}/health").json()["running"]) > 1:
        assert time.monotonic() < give_up_at, f"{rows} rows still run"
        time.sleep(0.05)


def test_the_address_of_an_image(server_url):
    with socket.create_server(("127.0.0.1", 0)) as trap:
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/lamp.png"
        image = {"type": "image_url", "image_url": {"url": address}}
        body = MESSAGES | {"messages": [{"role": "user", "content": [image]}]}
        error = _post(server_url, CHAT, body, 400)["error"]
        assert error["param"].startswith("messages[0]")
        trap.settimeout(1)
        with pytest.raises(TimeoutError):
            trap.accept()
