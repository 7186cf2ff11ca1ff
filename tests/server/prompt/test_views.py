"""A chat's views reach the engine with the request, or follow it there."""

import asyncio

import pytest

from tests.server.fake_engine import wait_first

CHAT = "/v1/chat/completions"
CODE = "def area(w, h):\n    return w * h\n\n\nprint(area(2, 3))\n"
NUMBERED = "".join(f"{at:6}→{line}\n" for at, line in enumerate(CODE.splitlines(), 1))
BODY = {"messages": [{"role": "user", "content": NUMBERED}], "max_tokens": 3}


async def texts_of(app, request):
    """Return the views of a request, once all are made."""
    await asyncio.gather(*app.state.service.background)
    return [bytes([*view]).decode() for view in request.views]


async def ask(client, **fields):
    (await client.post(CHAT, json=BODY | fields)).raise_for_status()


async def test_a_numbered_file_has_a_view_and_all_choices_share_it(app, client, engine):
    await ask(client, n=2)
    assert [await texts_of(app, request) for request in engine.requests] == [[CODE], [CODE]]


@pytest.mark.parametrize("draft", [{"type": "none"}, {"type": "ngram-mod"}, {"max_tokens": 0}], ids=str)
async def test_where_nothing_looks_in_views_none_are_made(app, client, engine, draft):
    await ask(client, draft=draft)
    assert await texts_of(app, engine.requests[0]) == []


async def test_before_the_first_token_no_views_are_made_and_those_of_the_last_turn_are_there(
    app, client, engine
):
    turn = {"messages": [*BODY["messages"], {"role": "user", "content": NUMBERED.replace("area", "size")}]}
    await ask(client)
    assert await texts_of(app, engine.requests[0]) == [CODE]
    num_encoded = len(engine.tokenizer.encoded_answers)
    engine.script = wait_first
    asked = asyncio.ensure_future(ask(client, **turn))
    assert await asyncio.to_thread(engine.wait_until, lambda: len(engine.requests) == 2, 30)  # noqa: TID251
    assert await texts_of(app, engine.requests[1]) == [CODE]
    assert len(engine.tokenizer.encoded_answers) == num_encoded
    engine.release()
    await asked
    assert sorted(await texts_of(app, engine.requests[1])) == [CODE, CODE.replace("area", "size")]


async def test_views_that_cannot_be_made_are_left_out(app, client, engine, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no tokens")

    monkeypatch.setattr(engine.tokenizer, "encode_answer", fail)
    await ask(client)
    assert await texts_of(app, engine.requests[0]) == []
    assert "views of a conversation cannot be made" in caplog.text
