"""`return_token_ids`: the ids of the answer and of its prompt, whole and in a stream, as vLLM has them."""

import pytest

from tests.server.fake_engine import says
from tests.server.requests.test_peer_fields import CHAT, COMPLETIONS, ask, chunks_of

BODIES = [(CHAT, {}), (COMPLETIONS, {})]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_each_choice_has_its_ids_and_the_prompt_s_stand_once(client, engine, path):
    engine.script = says("abc")
    answer = (await ask(client, path, return_token_ids=True, n=2)).json()
    prompt = list(engine.requests[0].prompt)
    assert [choice["token_ids"] for choice in answer["choices"]] == [list(b"abc")] * 2
    if path == CHAT:
        assert answer["prompt_token_ids"] == prompt
    else:
        assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [prompt] * 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_chunks_of_a_stream_add_up_to_the_ids(client, engine, path):
    engine.script = says("abc")
    chunks = chunks_of(await ask(client, path, return_token_ids=True, n=2, stream=True))
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [token for choice in own for token in choice.get("token_ids", ())] == list(b"abc")
        assert own[-1]["finish_reason"] == "stop"
        if path == COMPLETIONS:
            ids = [token for choice in own for token in choice.get("prompt_token_ids", ())]
            assert ids == list(engine.requests[0].prompt)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_nobody_else_gets_them(client, engine, path):
    engine.script = says("abc")
    for stream in (False, True):
        assert "token_ids" not in (await ask(client, path, stream=stream)).text


async def test_an_answer_of_no_tokens_has_none(client, engine):
    engine.script = says("a")
    answer = (await ask(client, COMPLETIONS, return_token_ids=True, max_tokens=0, echo=True)).json()
    assert answer["choices"][0]["token_ids"] == []
