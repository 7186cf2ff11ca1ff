"""Images of a conversation reach the engine as its processor would cut them, by every API."""

import asyncio
import base64
import io
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from reprise.engine.interface.images import Tiles
from reprise.engine.sandbox.child_process import ChildError
from reprise.server.prompt.images import DECODER
from tests.engine.sandbox.hostile_images import FILES, SHOWN
from tests.server.fake_engine import PROCESSOR, SEEING, says

RED, BLUE = (255, 0, 0), (0, 0, 255)
ASK = {"type": "text", "text": "What is it?"}


def data(colour=RED, size=(64, 96), kind="PNG"):
    """Return an image in base64. size: width and height."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def url(*given, **more):
    return f"data:image/png;base64,{data(*given, **more)}"


def part(*given, size=(64, 96), **more):
    return {"type": "image_url", "image_url": {"url": url(*given, size=size), **more}}


@pytest.fixture
def sees(engine):
    engine.info = replace(engine.info, vision=SEEING, context_tokens=4000)
    return engine


async def chat(client, *content, **more):
    message = {"role": "user", "content": list(content)}
    return await client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 5} | more)


def colours(request):
    """Return each image's colour, and check that its tokens are where it says."""
    shown = []
    for image in request.images:
        assert set(request.prompt[image.start : image.end]) == {PROCESSOR.placeholder}
        pixels = np.frombuffer(image.pixels, np.uint8).reshape(-1, 3, 256)
        assert pixels.shape[0] == image.grid[0] * image.grid[1] == 4 * image.length
        (colour,) = {tuple(map(int, patch[:, 0])) for patch in pixels}
        shown.append(colour)
    assert request.prompt.count(PROCESSOR.placeholder) == sum(image.length for image in request.images)
    return shown


def text_of(request):
    """Return the prompt, with a star for each run of an image's tokens."""
    text = bytes(request.prompt).decode()
    while "\3\3" in text:
        text = text.replace("\3\3", "\3")
    return text.replace("\3", "*")


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TURNS = {
    "chats": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": [ASK, part()]},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": [part(BLUE)]},
            ]
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 5,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        ASK,
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": data()},
                        },
                    ],
                },
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [
                                {
                                    "type": "image",
                                    "source": {
                                        "type": "base64",
                                        "media_type": "image/png",
                                        "data": data(BLUE),
                                    },
                                }
                            ],
                        }
                    ],
                },
            ],
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is it?"},
                        {"type": "input_image", "image_url": url(), "detail": "auto"},
                    ],
                },
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_image", "image_url": url(BLUE)}],
                },
            ]
        },
    ),
    "ollama": (
        "/api/chat",
        {
            "stream": False,
            "messages": [
                {"role": "user", "content": "What is it?", "images": [data()]},
                {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
                {"role": "tool", "tool_name": "look", "content": "", "images": [data(BLUE)]},
            ],
        },
    ),
}


@pytest.mark.parametrize("api", TURNS)
async def test_each_api_shows_images_of_users_and_of_tools(client, sees, api):
    path, body = TURNS[api]
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    (request,) = sees.requests
    assert colours(request) == [RED, BLUE]
    assert "x-reprise-ignored" not in response.headers
    assert {image.grid for image in request.images} == {(6, 4)}
    assert request.images[0].key != request.images[1].key


@pytest.mark.parametrize("api", TURNS)
async def test_a_model_without_eyes_is_shown_a_line_of_text(client, engine, api):
    path, body = TURNS[api]
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    (request,) = engine.requests
    assert request.images == ()
    assert bytes(request.prompt).decode().count("[image: this model reads text]") == 2
    assert response.headers["x-reprise-ignored"].count("(as text)") == 2


async def test_an_image_is_where_it_stands_between_texts(client, sees):
    await chat(client, {"type": "text", "text": "a"}, part(), {"type": "text", "text": "b"}, part(BLUE))
    (request,) = sees.requests
    assert text_of(request) == "user: a[*]b[*]\n"
    assert colours(request) == [RED, BLUE]


async def test_usage_says_how_many_tokens_are_images(client, sees):
    usage = (await chat(client, ASK, part())).json()["usage"]
    assert usage["prompt_tokens_details"]["image_tokens"] == 6
    assert usage["prompt_tokens"] == len(sees.requests[0].prompt)
    text = (await chat(client, ASK)).json()["usage"]
    assert "image_tokens" not in text["prompt_tokens_details"]


async def test_tokens_of_images_are_counted_before_they_are_sent(client, sees):
    path, body = TURNS["messages"]
    await client.post(path, json=body)
    counted = (await client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    assert counted == len(sees.requests[0].prompt)
    path, body = TURNS["responses"]
    await client.post(path, json=body)
    counted = (await client.post("/v1/responses/input_tokens", json=body)).json()["input_tokens"]
    assert counted == len(sees.requests[1].prompt)
    messages = TURNS["chats"][1]["messages"]
    tokens = (await client.post("/tokenize", json={"messages": messages})).json()["tokens"]
    assert tokens.count(PROCESSOR.placeholder) == 12


async def test_the_detail_and_the_setting_limit_an_images_tokens(client, sees):
    large = {"size": (1024, 1024)}
    for detail in ("auto", "high", "low"):
        url_part = {"type": "image_url", "image_url": {"url": url(**large), "detail": detail}}
        assert (await chat(client, ASK, url_part)).status_code == 200
    assert [request.images[0].length for request in sees.requests] == [1024, 1024, 256]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("https://example.org/a.png", "opens none for requests"),
        ("file:///etc/passwd", "opens none for requests"),
        ("data:image/png,abc", "not in base64"),
        ("data:image/png;base64,####", "base64"),
        ("data:image/png;base64,aGVsbG8=", "send a PNG, JPEG, WEBP or GIF"),
        ("", "has no image"),
    ],
)
async def test_what_is_no_image_is_refused_in_words(client, sees, source, reason):
    response = await chat(client, ASK, {"type": "image_url", "image_url": {"url": source}})
    assert response.status_code == 400
    fault = response.json()["error"]
    assert fault["param"] == "messages[0].content[1]"
    assert reason in fault["message"]
    assert not sees.requests


async def test_tiles_stand_behind_their_tokens_in_the_prompt(client, sees):
    tiles = Tiles(64, 2, 4, 1.0, (tuple(b"ABCD"), tuple(b"EF"), tuple(b"G"), tuple(b"H")), ord("W"))
    processor = replace(PROCESSOR, cut="lfm2", least=1024, most=4096, tiles=tiles)
    sees.info = replace(sees.info, vision=replace(SEEING, processor=processor))
    response = await chat(client, ASK, part(size=(128, 64)), part(BLUE, size=(64, 64)))
    assert response.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 4 + 4 + 2 + 4
    (request,) = sees.requests
    assert text_of(request) == "user: What is it?[A*B*W*][*]\n"
    assert [(image.grid, image.length) for image in request.images] == [
        ((4, 4), 4),
        ((4, 4), 4),
        ((2, 4), 2),
        ((4, 4), 4),
    ]
    for image in request.images:
        assert set(request.prompt[image.start : image.end]) == {PROCESSOR.placeholder}


async def test_what_was_no_image_earlier_is_a_line_of_text(client, sees):
    messages = [
        {
            "role": "user",
            "content": [ASK, {"type": "image_url", "image_url": {"url": "https://a.org/b.png"}}],
        },
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [ASK, part()]},
    ]
    response = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5})
    assert response.status_code == 200
    assert response.headers["x-reprise-ignored"] == "messages[0].content[1] (as text)"
    assert colours(sees.requests[0]) == [RED]


@pytest.mark.parametrize("step", ["decode", "render_chat"])
async def test_an_end_of_a_process_is_no_fault_of_the_request(client, sees, monkeypatch, step):
    def end(*_given):
        raise ChildError("it ended")

    before = [{"role": "user", "content": [ASK, part()]}, {"role": "assistant", "content": "A cat."}]
    body = {"messages": [*before, {"role": "user", "content": "And now?"}], "max_tokens": 5}
    with monkeypatch.context() as patch:
        patch.setattr(DECODER if step == "decode" else sees.tokenizer, step, end)
        response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "prompt_timeout")
    assert response.headers["retry-after"] == "1"
    assert not sees.requests
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert colours(sees.requests[0]) == [RED]


async def test_an_image_alone_is_for_models_that_see(client, sees):
    assert (await chat(client, part())).status_code == 200
    sees.info = replace(sees.info, vision=None)
    response = await chat(client, part())
    assert response.status_code == 400
    assert "serve a model that sees, such as mlx-community/" in response.json()["error"]["message"]


async def test_of_too_many_images_the_oldest_are_text_some_at_a_time(client, sees, settings):
    kept = []
    for count in range(18, 33):
        messages = []
        for _ in range(count):
            messages += [
                {"role": "user", "content": [part(size=(32, 32))]},
                {"role": "assistant", "content": "a"},
            ]
        messages[-1:] = []
        body = {"messages": messages, "max_tokens": 5}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        kept.append(len(sees.requests[-1].images))
    assert kept == [18, 19, 20, *range(11, 21), 11, 12]
    response = await chat(client, ASK, *[part()] * (settings.max_images + 1))
    assert response.status_code == 400
    assert "--max-images" in response.json()["error"]["message"]


async def test_text_that_spells_a_mark_shows_no_image(client, sees):
    await chat(client, {"type": "text", "text": "\ufdd20\ufdd3"}, part())
    assert text_of(sees.requests[0]) == "user: 0[*]\n"


async def test_a_mark_in_calls_thoughts_and_tools_shows_no_image(client, sees):
    spelled = "\ufdd20\ufdd3"
    function = {"name": "look", "arguments": json.dumps({spelled: [spelled]})}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": [part()]},
        {"role": "assistant", "content": None, "reasoning_content": spelled, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a"},
    ]
    parameters = {"type": "object", "properties": {"at": {"type": "string", "enum": [spelled]}}}
    tool = {"name": "look", "description": spelled, "parameters": parameters}
    body = {"messages": messages, "tools": [{"type": "function", "function": tool}], "max_tokens": 5}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (shown, _), tools = sees.tokenizer.rendered[-1], sees.tokenizer.rendered_tools[-1]
    assert colours(sees.requests[0]) == [RED]
    assert [json.dumps(one).count("\\ufdd2") for one in (*shown, tools)] == [1, 0, 0, 0]


async def test_a_stored_response_keeps_its_images(client, sees):
    sees.script = says("Red.")
    path, body = TURNS["responses"]
    first = (await client.post(path, json=body)).json()
    later = await client.post(path, json={"input": "And now?", "previous_response_id": first["id"]})
    assert later.status_code == 200, later.text
    assert colours(sees.requests[1]) == [RED, BLUE]
    items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    kinds = [part["type"] for item in items for key in ("content", "output") for part in item.get(key) or []]
    assert kinds.count("input_image") == 2


async def test_the_same_image_is_decoded_once(client, sees, monkeypatch):
    calls = []
    decode = DECODER.decode

    def count(*given):
        calls.append(given)
        return decode(*given)

    monkeypatch.setattr(DECODER, "decode", count)
    for _ in range(2):
        assert (await chat(client, ASK, part(), part())).status_code == 200
    assert len(calls) == 1
    assert colours(sees.requests[1]) == [RED, RED]


@pytest.mark.usefixtures("sees")
async def test_a_large_image_delays_nobody_else(client, monkeypatch):
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    decode = DECODER.large.call

    def wait_first(**given):
        loop.call_soon_threadsafe(begun.set)
        may_end.wait()
        return decode(**given)

    monkeypatch.setattr(DECODER.large, "call", wait_first)
    large = asyncio.create_task(chat(client, ASK, part(size=(3000, 2100))))
    await begun.wait()
    assert (await chat(client, ASK)).status_code == 200
    assert (await chat(client, ASK, part())).status_code == 200
    assert not large.done()
    may_end.set()
    assert (await large).status_code == 200


@pytest.mark.usefixtures("sees")
async def test_no_hostile_file_ends_in_more_than_a_refusal(client):
    files = {name: make() for name, make in FILES.items()}
    for name, data in files.items():
        # The server of the tests takes short bodies, and the longest files are tried without it.
        if len(data) > 70_000:
            continue
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        response = await chat(client, ASK, {"type": "image_url", "image_url": {"url": source}})
        if response.status_code == 200:
            assert name in SHOWN
        else:
            assert response.status_code == 400, name
            assert response.json()["error"]["message"].startswith("The image 'messages[0].content[1]' ")
            assert response.json()["error"]["param"] == "messages[0].content[1]"
    assert (await chat(client, ASK, part())).status_code == 200


async def test_clients_are_told_whether_a_model_sees(client, sees):
    card = (await client.get("/v1/models/alias")).json()
    assert card["modalities"] == {"input": ["text", "image"], "output": ["text"]}
    assert card["vision"] == {"example_tokens": 768, "max_tokens": 1024, "max_images": 20}
    shown = (await client.post("/api/show", json={"model": "alias"})).json()
    assert "vision" in shown["capabilities"]
    sees.info = replace(sees.info, vision=None)
    card = (await client.get("/v1/models/alias")).json()
    assert card["modalities"]["input"] == ["text"]
    assert card["vision"] is None
    assert "vision" not in (await client.post("/api/show", json={"model": "alias"})).json()["capabilities"]


async def test_a_conversation_that_is_too_long_loses_its_oldest_images(client, sees):
    sees.info = replace(sees.info, context_tokens=900)
    messages = []
    for colour in (RED, BLUE):
        messages += [{"role": "user", "content": [ASK, part(colour, size=(768, 768))]}]
        messages += [{"role": "assistant", "content": "a colour"}]
    body = {"messages": messages[:-1], "max_tokens": 5}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 400
    response = await client.post("/v1/chat/completions", json=body | {"truncation": "auto"})
    assert response.headers["x-reprise-ignored"] == "truncation: the 2 oldest messages"
    assert colours(sees.requests[0]) == [BLUE]
    body |= {"truncate_prompt_tokens": 800}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.json()["error"]["param"] == "truncate_prompt_tokens"
