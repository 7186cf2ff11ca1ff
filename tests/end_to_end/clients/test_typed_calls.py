"""Each typed call of OpenAI's SDK once, as its own tests make them, but with ids that exist.

The SDK checks every answer against its types. Its own tests name chats, responses and conversations that
nobody made, for which a 404 is right. Left out here: what needs a vendor's store of chats
(chat.completions.retrieve, update, list, delete and messages) and models.delete.
"""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion
from openai.types.responses import CompactedResponse, Response
from openai.types.responses.input_token_count_response import InputTokenCountResponse

HELLO = [{"role": "user", "content": "Hello!"}]
SHORT = {"model": "demo", "max_tokens": 4}


@pytest.fixture(scope="module")
def client(server_url):
    strict = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
    with openai.OpenAI(base_url=f"{server_url}/v1", **strict) as made:
        yield made


@pytest.fixture(scope="module")
def stored(client):
    """The id of a response that is stored."""
    return client.responses.create(model="demo", input="Hello!", max_output_tokens=4).id


Call = Callable[[openai.OpenAI, str], Any]
CALLS: dict[str, tuple[type, Call]] = {
    "chat": (ChatCompletion, lambda c, _: c.chat.completions.create(messages=HELLO, **SHORT)),
    "completion": (Completion, lambda c, _: c.completions.create(prompt="def", **SHORT)),
    "models.retrieve": (Model, lambda c, _: c.models.retrieve("demo")),
    "response": (Response, lambda c, _: c.responses.create(input="Hello!", max_output_tokens=4)),
    "response without a model and an input": (Response, lambda c, _: c.responses.create(max_output_tokens=4)),
    "response that continues": (
        Response,
        lambda c, known: c.responses.create(previous_response_id=known, max_output_tokens=4),
    ),
    "responses.retrieve": (Response, lambda c, known: c.responses.retrieve(known)),
    "responses.retrieve with all parameters": (
        Response,
        lambda c, known: c.responses.retrieve(
            known,
            include=["file_search_call.results"],
            include_obfuscation=True,
            starting_after=0,
            stream=False,
        ),
    ),
    "responses.cancel": (Response, lambda c, known: c.responses.cancel(known)),
    # With messages of the user in it, no answer is of that type, not even the one in OpenAI's documentation.
    "responses.compact": (CompactedResponse, lambda c, _: c.responses.compact(model="demo")),
    "input_tokens": (
        InputTokenCountResponse,
        lambda c, _: c.responses.input_tokens.count(model="demo", input="Hello!"),
    ),
    "input_tokens without an input": (
        InputTokenCountResponse,
        lambda c, _: c.responses.input_tokens.count(),
    ),
}
"""For each call: the type of its answer, and how it is made, from the client and a stored response's id."""


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_is_of_the_sdks_own_type(client, stored, name):
    kind, call = CALLS[name]
    assert isinstance(call(client, stored), kind)


@pytest.mark.parametrize("name", CALLS)
def test_a_raw_answer_is_of_that_type_too(client, stored, name):
    kind, call = CALLS[name]
    assert isinstance(call(client.with_raw_response, stored).parse(), kind)


# Not completions: their type has no chunk before the last, whose finish_reason is null.
STREAMS: dict[str, Call] = {
    "chat": lambda c, _: c.chat.completions.create(messages=HELLO, stream=True, **SHORT),
    "response": lambda c, _: c.responses.create(input="Hello!", max_output_tokens=4, stream=True),
    "responses.retrieve": lambda c, known: c.responses.retrieve(known, stream=True),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_event_of_a_stream_is_of_the_sdks_own_types(client, stored, name):
    assert list(STREAMS[name](client, stored))


def test_pages_are_of_the_sdks_own_types(client, stored):
    assert "demo" in [model.id for model in client.models.list()]
    items = client.responses.input_items
    listed = list(items.list(stored, include=["file_search_call.results"], limit=1, order="asc"))
    assert [item.role for item in listed] == ["user"]
    assert not items.list(stored, after=listed[0].id).data
    assert not items.list(stored, limit=0).data


def test_what_was_deleted_is_gone(client):
    made = client.responses.create(input="Hello!", max_output_tokens=4)
    assert client.responses.delete(made.id) is None
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
