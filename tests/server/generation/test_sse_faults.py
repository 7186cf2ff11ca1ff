"""Faults in submitting, reading and writing an output are reported and leave no sequence running."""

import asyncio

import pytest

from reprise.server.generation.answer import RequestOutput, Submission
from reprise.server.openai_api.chat import OpenAIPresenter
from reprise.server.output.parser_base import PlainParser
from tests.server import fake_engine
from tests.server.openai_shapes import assert_error

BODY = {"prompt": "hello", "n": 2}


def breaks(monkeypatch, owner, name, at=1):
    """Make the at-th call raise; the calls before and after it work."""
    original, calls = getattr(owner, name), []

    def broken(*args, **named):
        calls.append(name)
        if len(calls) == at:
            raise ZeroDivisionError(f"a fault in {name}")
        return original(*args, **named)

    monkeypatch.setattr(owner, name, broken)
    return calls


async def settle(engine):
    """Wait until the engine has no sequences left."""
    assert await asyncio.to_thread(engine.wait_until, lambda: engine.num_live == 0, 30)  # noqa: TID251


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("at", [1, 2], ids=["first choice", "second choice"])
async def test_a_fault_in_submitting_is_a_500_and_leaves_no_choice_running(
    client, engine, monkeypatch, stream, at
):
    engine.script = fake_engine.wait_first
    breaks(monkeypatch, engine, "submit", at)
    response = await client.post("/v1/completions", json=BODY | {"stream": stream})
    assert response.status_code == 500
    assert_error(response.json())
    await settle(engine)
    assert len(engine.cancelled_ids) == at - 1


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Submission, "receive"),
        (PlainParser, "read"),
        (PlainParser, "end"),
        (RequestOutput, "usage"),
        (RequestOutput, "timings"),
    ],
    ids=["mailbox", "detokenised text", "end", "usage", "timings"],
)
async def test_a_fault_while_reading_the_output_is_reported_and_leaves_nothing_running(
    client, engine, monkeypatch, stream, owner, name
):
    is_midway = stream and name in ("receive", "read")
    engine.script = fake_engine.wait_midway if is_midway else fake_engine.echo
    breaks(monkeypatch, owner, name)
    response = await client.post("/v1/completions", json=BODY | {"stream": stream})
    if response.status_code == 200:
        assert stream
        assert '"error"' in response.text
        assert response.headers["x-request-id"] in response.text
    else:
        assert response.status_code == 500
        assert response.headers["x-request-id"] in assert_error(response.json())
    await settle(engine)
    engine.script = fake_engine.echo
    assert (await client.post("/v1/completions", json={"prompt": "hello"})).status_code == 200


@pytest.mark.parametrize("name", ["format_opening", "format_parts", "format_end"])
async def test_a_fault_while_writing_a_stream_is_reported_in_it(client, engine, monkeypatch, name):
    engine.script = fake_engine.wait_midway if name == "format_parts" else fake_engine.echo
    breaks(monkeypatch, OpenAIPresenter, name)
    response = await client.post("/v1/completions", json=BODY | {"stream": True})
    assert '"error"' in response.text
    assert response.headers["x-request-id"] in response.text
    await settle(engine)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_connection_that_cannot_be_written_to_frees_the_engine(app, engine, stream, at):
    engine.script = fake_engine.wait_midway if stream else fake_engine.echo
    written = []

    async def receive():
        if not written:
            written.append("body")
            body = f'{{"prompt": "hello", "stream": {str(stream).lower()}}}'.encode()
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.sleep(60)
        raise AssertionError("nobody leaves")

    num_sent = 0

    async def send(_message):
        nonlocal num_sent
        num_sent += 1
        if num_sent > at:
            raise OSError("broken pipe")

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 9),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
    }
    async with app.router.lifespan_context(app):
        serving = asyncio.create_task(app(scope, receive, send))
        if stream and at == 3:
            # The first part has been sent; the rest follows once the engine continues.
            await asyncio.sleep(0.2)
            engine.release()
        async with asyncio.timeout(240):
            await asyncio.gather(serving, return_exceptions=True)
        await settle(engine)
