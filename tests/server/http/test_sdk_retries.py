"""The SDKs retry exactly when the server says so, and after the time that it says."""

import time

import anthropic
import httpx
import openai
import pytest

from reprise.engine.interface.errors import RETRY_AFTER_S
from tests.combinations import spread
from tests.server.fake_engine import echo, fail_first, fail_midway, wait_first

HELLO = [{"role": "user", "content": "Hi!"}]
# The queue is full for the second of the answers, when the first has been taken.
CHAT = {"model": "alias", "messages": HELLO, "n": 2}
BUSY = [("draining", 503, openai.InternalServerError), ("queue_full", 429, openai.RateLimitError)]


@pytest.fixture
def statuses(engine):
    """The status of each response so far. After the first response the engine accepts requests."""
    seen = []

    def note(response):
        seen.append(response.status_code)
        engine.refusal, engine.script = None, echo

    seen_by = {"response": [note]}
    engine.script = wait_first
    return seen, seen_by


def _sdk(url, hooks, **options):
    http = httpx.Client(event_hooks=hooks)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, **options)


@pytest.mark.parametrize(
    ("is_streaming", "busy"), spread({"whole": False, "stream": True}, {"503": BUSY[0], "429": BUSY[1]})
)
def test_a_refused_request_is_sent_again_after_the_wait(url, engine, statuses, busy, is_streaming):
    refusal, status, _error = busy
    seen, hooks = statuses
    engine.refusal = refusal
    start_s = time.monotonic()
    with _sdk(url, hooks) as client:
        answer = client.chat.completions.create(**CHAT, stream=is_streaming)
        choices = [choice for chunk in answer for choice in chunk.choices] if is_streaming else answer.choices
    assert {choice.index for choice in choices} == {0, 1}
    assert seen == [status, 200]
    assert time.monotonic() - start_s >= RETRY_AFTER_S


@pytest.mark.parametrize(
    ("refusal", "status", "_error"),
    [pytest.param(*BUSY[0], id="503", marks=pytest.mark.slow), pytest.param(*BUSY[1], id="429")],
)
async def test_the_async_client_sends_it_again_too(url, engine, statuses, refusal, status, _error):
    seen, hooks = statuses

    async def note(response):
        hooks["response"][0](response)

    engine.refusal = refusal
    http = httpx.AsyncClient(event_hooks={"response": [note]})
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client:
        answer = await client.chat.completions.create(**CHAT)
    assert len(answer.choices) == 2
    assert seen == [status, 200]


def test_anthropics_client_sends_again_too(url, engine, statuses):
    seen, hooks = statuses
    engine.refusal = "draining"
    http = anthropic.DefaultHttpxClient(event_hooks=hooks)
    with anthropic.Anthropic(base_url=url, api_key="none", http_client=http) as client:
        answer = client.messages.create(model="alias", messages=HELLO, max_tokens=50)
    assert answer.content[0].text
    assert seen == [503, 200]


@pytest.mark.parametrize(("refusal", "status", "error"), BUSY, ids=["503", "429"])
def test_without_retries_the_client_gets_the_error_with_its_message(url, engine, refusal, status, error):
    engine.script, engine.refusal = wait_first, refusal
    with _sdk(url, {}, max_retries=0) as client, pytest.raises(error) as caught:
        client.chat.completions.create(**CHAT)
    fault = caught.value
    assert (fault.status_code, fault.code) == (status, refusal)
    assert fault.message
    assert fault.response.headers["retry-after"] == "1"
    assert fault.request_id.startswith("req-")


def test_a_request_that_failed_is_an_internal_server_error(url, engine):
    engine.script = fail_first
    with _sdk(url, {}, max_retries=0) as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**CHAT)
    assert caught.value.code == "request_failed"


def test_an_error_in_mid_stream_is_raised_while_it_is_read(url, engine):
    engine.script = fail_midway
    with _sdk(url, {}) as client:
        stream = client.chat.completions.create(**CHAT | {"n": 1}, stream=True)
        with pytest.raises(openai.APIError, match="the roof is on fire"):
            list(stream)


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda client: client.chat.completions.create(**CHAT, temperature=9), 400),
        (lambda client: client.chat.completions.create(**CHAT | {"model": "other"}), 404),
        (lambda client: client.embeddings.create(model="alias", input="Hi!"), 400),
    ],
    ids=["400", "404", "embeddings"],
)
def test_permanent_errors_are_not_retried(url, statuses, ask, status):
    seen, hooks = statuses
    with _sdk(url, hooks) as client, pytest.raises(openai.APIStatusError):
        ask(client)
    assert seen == [status]
