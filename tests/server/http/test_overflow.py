"""A prompt over the context is told in the words that agents look for: after them they condense it."""

import re
from dataclasses import replace

import openai
import pytest

from reprise.engine.interface.models import MemoryLimit
from tests.server.openai_api.responses.responses_shapes import raw_events, valid_events
from tests.server.openai_shapes import assert_error

LONG = "x" * 1500
CHAT = {"messages": [{"role": "user", "content": LONG}]}
CHATS = (
    r"This model's maximum context length is 1000 tokens\. However, your messages resulted in (\d+) tokens\. "
    r"Please reduce the length of the messages\. "
)
RESPONSES = (
    r"Your input exceeds the context window of this model\. Please adjust your input and try again\. "
    r"The prompt has (\d+) tokens"
)
FORMS = [
    ("/v1/chat/completions", CHAT, CHATS),
    ("/v1/completions", {"prompt": LONG}, CHATS.replace("messages", "prompt")),
    ("/v1/responses", {"input": LONG}, RESPONSES),
]
STREAMED = [(path, body | {"stream": True}, form) for path, body, form in FORMS[:2]]


@pytest.mark.parametrize(("path", "body", "form"), FORMS + STREAMED)
async def test_openai_s_code_and_sentence_come_before_our_way_out(client, path, body, form):
    response = await client.post(path, json=body)
    assert response.status_code == 400
    message = assert_error(response.json(), next(iter(body)), "context_length_exceeded")
    told = re.match(form, message)
    assert told
    assert int(told[1]) >= 1500
    assert message.endswith("(the model's own limit, or --max-context-tokens). Shorten it.")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_messages_has_anthropic_s_sentence(client, path):
    # What certainly fits is counted, and so is what only its encoding shows to be too long.
    given = _much_longer(CHAT) if path.endswith("tokens") else CHAT | {"max_tokens": 5}
    response = await client.post(path, json=given)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    told = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum\. The prompt has ", error["message"])
    assert told
    assert int(told[1]) > int(told[2]) == 999


def _much_longer(given):
    return given | {"messages": [{"role": "user", "content": LONG * 10}]}


async def test_a_prompt_that_fills_the_context_to_the_last_token_is_over_the_maximum_too(client, engine):
    body = {"messages": [{"role": "user", "content": "x" * 100}], "max_tokens": 5}
    counted = (
        await client.post("/v1/messages/count_tokens", json=CHAT | {"messages": body["messages"]})
    ).json()
    engine.info = replace(engine.info, context_tokens=counted["input_tokens"])
    message = (await client.post("/v1/messages", json=body)).json()["error"]["message"]
    exact = counted["input_tokens"]
    assert message.startswith(f"prompt is too long: {exact} tokens > {exact - 1} maximum")


@pytest.mark.parametrize(
    ("path", "sought"),
    [
        # Claude Code 2.1 and qwen-code 0.15 count from it how much they have to leave out.
        ("/v1/messages", r"(?i)prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)"),
        (
            "/v1/chat/completions",
            r"(?i)maximum context length is\s*(\d+)\s*tokens?[\s\S]*?resulted in\s*(\d+)\s*tokens?",
        ),
        # opencode 1.18; aider 0.86, by LiteLLM; Continue 1.5 and opencode.
        ("/v1/chat/completions", r"(?i)maximum context length is \d+ tokens"),
        ("/v1/chat/completions", r"(?i)this model's maximum context length is"),
        ("/v1/chat/completions", r"(?i)reduce the length of the messages"),
        # opencode, of a model that it asks by Responses.
        ("/v1/responses", r"(?i)exceeds the context window"),
    ],
)
async def test_it_is_what_the_agents_packages_look_for(client, path, sought):
    given = {"input": LONG} if path == "/v1/responses" else CHAT | {"max_tokens": 5}
    message = (await client.post(path, json=given)).json()["error"]["message"]
    assert re.search(sought, message)


async def test_responses_tell_it_in_a_stream_where_codex_looks(client):
    response = await client.post("/v1/responses", json={"input": LONG, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    # OpenAI's own package does not list this code, though OpenAI's servers send it.
    valid_events(
        response.text.replace('"error":{"code":"context_length_exceeded"', '"error":{"code":"server_error"')
    )
    told, failed = raw_events(response.text)[2:]
    assert (told["type"], told["code"]) == ("error", "context_length_exceeded")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert failed["response"]["error"]["message"].startswith(
        "Your input exceeds the context window of this model."
    )


async def test_the_metrics_have_the_code_though_the_stream_s_status_is_200(client):
    await client.post("/v1/responses", json={"input": LONG, "stream": True})
    counted = (await client.get("/metrics")).text
    assert re.search(r"errors_total.*context_length_exceeded.* 1\.0", counted)


async def test_what_memory_allows_is_said_after_the_sentence(client, engine):
    engine.info = replace(engine.info, memory_limit=MemoryLimit(2**20, 1000, 2**20, 1024.0))
    response = await client.post("/v1/chat/completions", json=CHAT)
    message = assert_error(response.json(), "messages", "context_length_exceeded")
    assert message.startswith("This model's maximum context length is 1000 tokens. However, your messages")
    assert message.endswith("or start the server with a larger --memory-bytes.")


async def test_what_is_no_prompt_keeps_its_own_words(client):
    prediction = {"type": "content", "content": LONG}
    body = {"messages": [{"role": "user", "content": "x"}], "prediction": prediction}
    response = await client.post("/v1/chat/completions", json=body)
    assert assert_error(response.json(), "prediction", "context_length_exceeded").startswith(
        "The prediction has"
    )


async def test_a_stream_of_messages_is_refused_before_it_begins(client):
    response = await client.post("/v1/messages", json=CHAT | {"max_tokens": 5, "stream": True})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("prompt is too long: ")


def test_openai_s_package_reads_the_failed_stream(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        events = list(sdk.responses.create(model="alias", input=LONG, stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "context_length_exceeded"
