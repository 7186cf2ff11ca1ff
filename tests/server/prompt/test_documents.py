"""Documents of a conversation reach the model as text, by every API."""

import asyncio
import base64
import json
import threading
from dataclasses import replace
from itertools import count

import pytest

from reprise.engine.sandbox.child_process import ChildError
from reprise.server.prompt import documents
from tests.engine.sandbox.pdfs import pdf
from tests.server.fake_engine import SEEING
from tests.server.prompt.test_images import part as image

ASK = {"type": "text", "text": "What is it?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def data(*pages):
    return base64.b64encode(pdf(*pages)).decode()


def file(given, name="a.pdf"):
    sent = f"data:application/pdf;base64,{given}"
    return {"type": "file", "file": {"filename": name, "file_data": sent}}


def block(given):
    source = {"type": "base64", "media_type": "application/pdf", "data": given}
    return {"type": "document", "title": "a.pdf", "source": source}


def item(given):
    return {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{given}"}


def turns(user, tool):
    """Return the path and the body of each API for a document of the user, and one that a tool returns."""
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block(tool)]}
    said = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, item(user)]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    return {
        "chats": (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [ASK, file(user)]},
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "call_1", "content": [file(tool)]},
                ]
            },
        ),
        "messages": (
            "/v1/messages",
            {
                "max_tokens": 5,
                "messages": [
                    {"role": "user", "content": [ASK, block(user)]},
                    {"role": "assistant", "content": [use]},
                    {"role": "user", "content": [result]},
                ],
            },
        ),
        "responses": (
            "/v1/responses",
            {
                "input": [
                    said,
                    call,
                    {"type": "function_call_output", "call_id": "c1", "output": [item(tool)]},
                ]
            },
        ),
    }


@pytest.fixture
def reads(monkeypatch):
    """The documents that were read."""
    read, given = [], documents.read_document
    monkeypatch.setattr(documents, "read_document", lambda one: read.append(one) or given(one))
    return read


async def chat(client, *content, before=()):
    messages = [*before, {"role": "user", "content": list(content)}]
    return await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5})


def prompt(engine):
    return bytes(engine.requests[-1].prompt).decode()


@pytest.mark.parametrize("api", ["chats", "messages", "responses"])
async def test_each_api_shows_the_text_of_documents(client, engine, api):
    path, body = turns(data("Hello", "World"), data("Result"))[api]
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "What is it?[document a.pdf]\n[page 1]\nHello\n\n[page 2]\nWorld" in prompt(engine).replace(
        "\n[doc", "[doc"
    )
    assert "[document a.pdf]\n[page 1]\nResult" in prompt(engine)


@pytest.mark.parametrize("api", ["chats", "messages", "responses"])
async def test_a_tools_document_without_text_is_shown_with_the_reason(client, engine, api):
    path, body = turns(data("Hello"), data(""))[api]
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "[document a.pdf: it has no text; if it was scanned" in prompt(engine)


async def test_a_document_is_enough_of_a_turn(client, engine):
    response = await chat(client, file(data("Hello")))
    assert response.status_code == 200, response.text
    assert "[document a.pdf]\n[page 1]\nHello" in prompt(engine)


async def test_text_files_are_shown_too(client, engine):
    sent = "data:text/markdown;base64," + base64.b64encode("# Ä".encode()).decode()
    await chat(client, ASK, {"type": "file", "file": {"filename": "a.md", "file_data": sent}})
    assert "[document a.md]\n# Ä" in prompt(engine)


async def test_a_model_that_sees_is_shown_both(client, engine):
    engine.info = replace(engine.info, vision=SEEING, context_tokens=4000)
    response = await chat(client, file(data("Hello")), image())
    assert response.status_code == 200, response.text
    assert "[page 1]\nHello" in prompt(engine)
    assert len(engine.requests[-1].images) == 1


async def test_the_users_new_document_without_text_is_refused_and_an_old_one_shown_with_the_reason(
    client, engine
):
    refused = await chat(client, ASK, file(data("")))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_document", "messages[0].content[1]")
    assert error["message"].startswith(
        "The document 'messages[0].content[1]' has no text; if it was scanned,"
    )
    before = [{"role": "user", "content": [ASK, file(data(""))]}, {"role": "assistant", "content": "Paper."}]
    response = await chat(client, ASK, before=before)
    assert response.status_code == 200, response.text
    assert "[document a.pdf: it has no text" in prompt(engine)


async def test_a_document_elsewhere_is_a_placeholder_as_before(client, engine):
    response = await chat(client, ASK, {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}})
    assert response.status_code == 200, response.text
    assert "[document a.pdf: it has no data here, and this server opens no URLs" in prompt(engine)
    assert "messages[0].content[1]" in response.headers["x-reprise-ignored"]
    alone = await chat(client, {"type": "input_file", "file_url": "https://example.com/a.pdf"})
    assert alone.status_code == 400
    assert "(document), and it has no data here, and this server opens no URLs" in alone.text


async def test_what_follows_a_document_that_is_text_stands_apart(client, engine):
    source = {"type": "text", "media_type": "text/plain", "data": "Total: 12"}
    content = [{"type": "document", "title": "a", "source": source}, {"type": "text", "text": "5 is what?"}]
    sent = {"model": "org/fake-model", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    response = await client.post("/v1/messages", json=sent)
    assert response.status_code == 200, response.text
    assert "[document a]\nTotal: 12\n\n" in prompt(engine)


@pytest.mark.parametrize(
    "part",
    [
        file("DATA"),
        {"type": "file", "file": {"file_data": "DATA"}},
        {"type": "file", "file": "data:application/pdf;base64,DATA"},
        {"type": "document", "source": {"type": "url", "url": "data:application/pdf;base64,DATA"}},
        {"type": "document", "source": {}, "file": {"file_data": "DATA"}},
        {"type": "input_file", "file_url": "data:;base64,DATA"},
    ],
)
async def test_a_document_is_found_in_each_shape(client, engine, part):
    response = await chat(client, ASK, json.loads(json.dumps(part).replace("DATA", data("Hello"))))
    assert response.status_code == 200, response.text
    assert "[page 1]\nHello" in prompt(engine)


async def test_a_document_that_was_read_is_not_noted(client, strict_client):
    response = await chat(client, ASK, file(data("Hello")))
    assert "x-reprise-ignored" not in response.headers
    assert (await chat(strict_client, ASK, file(data("Hello")))).status_code == 200
    before = [{"role": "user", "content": [ASK, file(data(""))]}, {"role": "assistant", "content": "Paper."}]
    assert (await chat(strict_client, ASK, before=before)).status_code == 400


async def test_what_is_left_out_beside_a_document_is_noted_once(client):
    path, body = turns(data("Hello"), data("Result"))["messages"]
    response = await client.post(path, json=body | {"metadata": {"user_id": "a"}, "unknown_one": 1})
    assert response.headers["x-reprise-ignored"].count("unknown_one") == 1


async def test_a_document_that_is_sent_twice_is_read_once(client, reads):
    await chat(client, ASK, file(data("Hello")), file(data("Hello"), "b.pdf"))
    assert reads == [data("Hello")]


async def test_later_turns_do_not_read_a_document_again(client, reads):
    for _ in range(3):
        await chat(client, ASK, file(data("Hello")), file(data("")))
        await chat(client, ASK, file(data("Hello")))
    assert sorted(reads) == sorted([data("Hello"), data("")])


async def test_all_documents_have_a_limit_together_which_leaves_out_the_oldest(
    client, engine, reads, monkeypatch
):
    monkeypatch.setattr("reprise.engine.sandbox.child_script.MAX_CHARACTERS", 60)
    files = [file(data(f"{at}" * 20), f"{at}.pdf") for at in range(4)]
    refused = await chat(client, ASK, *files)
    assert "has too much text: all documents may have 60 characters" in refused.json()["error"]["message"]
    before = [{"role": "user", "content": [ASK, *files]}, {"role": "assistant", "content": "Paper."}]
    response = await chat(client, ASK, before=before)
    assert response.status_code == 200, response.text
    assert "[page 1]\n" + "3" * 20 in prompt(engine)
    assert "[page 1]\n" + "2" * 20 in prompt(engine)
    assert prompt(engine).count("it has too much text") == 2
    # The one before the oldest showed that there is too much.
    assert len(reads) == 3


async def test_an_end_of_the_reading_process_is_no_fault_of_the_document(client, engine, monkeypatch):
    def end(_data):
        raise ChildError("it ended")

    before = [
        {"role": "user", "content": [ASK, file(data("Hello"))]},
        {"role": "assistant", "content": "Paper."},
    ]
    with monkeypatch.context() as patched:
        patched.setattr(documents, "read_document", end)
        response = await chat(client, ASK, before=before)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "document_timeout")
        assert not engine.requests
    assert (await chat(client, ASK, before=before)).status_code == 200
    assert "[page 1]\nHello" in prompt(engine)


async def test_a_request_whose_documents_take_long_goes_on_where_it_was(client, engine, monkeypatch):
    clock = count(step=10)
    monkeypatch.setattr(documents, "monotonic", lambda: next(clock))
    files = [file(data(f"{at}")) for at in range(3)]
    answers = [await chat(client, ASK, *files) for _ in range(3)]
    assert [one.status_code for one in answers] == [503, 503, 200]
    assert all(one.headers["retry-after"] for one in answers[:2])
    assert all(f"[page 1]\n{at}" in prompt(engine) for at in range(3))


async def test_nobody_waits_for_anothers_documents(client, monkeypatch):
    begun, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def read(_data):
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)
        return "slowly"

    monkeypatch.setattr(documents, "read_document", read)
    # More than there are threads that prepare requests.
    slow = [asyncio.create_task(chat(client, ASK, file(data(f"{at}")))) for at in range(6)]
    await begun.wait()
    response = await chat(client, ASK)
    assert response.status_code == 200, response.text
    assert not any(one.done() for one in slow)
    go_on.set()
    assert {one.status_code for one in await asyncio.gather(*slow)} == {200}


async def test_a_response_that_goes_on_has_its_documents(client, engine):
    first = await client.post("/v1/responses", json=turns(data("Hello"), data("Result"))["responses"][1])
    more = {"input": "And now?", "previous_response_id": first.json()["id"]}
    assert (await client.post("/v1/responses", json=more)).status_code == 200
    assert "[document a.pdf]\n[page 1]\nHello" in prompt(engine)
    assert "[document a.pdf]\n[page 1]\nResult" in prompt(engine)
    items = (await client.get(f"/v1/responses/{first.json()['id']}/input_items")).json()["data"]
    assert json.dumps(items).count('"input_file"') == 2


async def test_tokens_are_counted_with_documents(client):
    async def count_with(*content):
        body = {"messages": [{"role": "user", "content": [ASK, *content]}]}
        return (await client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]

    assert await count_with(block(data("Hello" * 9))) - await count_with() > 45
