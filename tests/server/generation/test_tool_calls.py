"""Tool calls are parsed off the event loop; a text that takes long delays its own client alone."""

import asyncio
import json
import logging
import queue
import threading
from dataclasses import replace

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.engine.foreign.tool_calls import PARSE_LIMITS, ParseLimitError, ParserProcesses, WrittenCall
from reprise.server.app import create_app
from reprise.server.generation.tool_calls import MAX_PARSES, ToolCallParsing
from reprise.server.metrics.registry import Metrics
from tests.server.fake_engine import FakeTokenizer, says
from tests.server.openai_shapes import valid_chat, valid_chat_chunks
from tests.server.served import served

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
HOSTILE = '<tool_call>{"hostile": 1}</tool_call>'
ROME = '<tool_call>{"arguments": {"city": "Rome"}, "name": "weather"}</tool_call>'
"""Only the whole of it can be parsed: the arguments come before the name."""
KEYS = ("mallory", "alice", *(f"mallory-{i}" for i in range(MAX_PARSES)))


class StuckTokenizer(FakeTokenizer):
    """Parses hostile text until it is released, and then fails as a killed process does."""

    def __init__(self):
        super().__init__()
        self.stuck = queue.SimpleQueue()
        self.may_end = threading.Event()

    def parse_calls(self, text, tools):
        if "hostile" not in text:
            return super().parse_calls(text, tools)
        self.stuck.put(text)
        self.may_end.wait(240)
        raise ParseLimitError("it took too much")


class Gemma4Tokenizer(FakeTokenizer):
    """Parses with mlx-lm's parser for Gemma 4, with little CPU time."""

    def __init__(self):
        super().__init__()
        self._processes = ParserProcesses(replace(PARSE_LIMITS, cpu_s=0.1))

    def parse_calls(self, text, tools):
        return self._processes.parse("gemma4", text, tools)


@pytest.fixture
def engine(engine):
    engine.tokenizer = stuck = StuckTokenizer()
    yield engine
    stuck.may_end.set()


@pytest.fixture
def settings():
    return Settings(api_key=KEYS, max_rows=4, max_queue=4, keep_alive_s=30.0)


def _ask(client, said, key, **fields):
    body = {"messages": [{"role": "user", "content": said}], "tools": TOOLS, **fields}
    return client.post(PATH, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=240)


async def _ask_and_get_stuck(client, engine, key="mallory", **fields):
    """Return the task of a request whose tool call is being parsed forever."""
    asking = asyncio.create_task(_ask(client, HOSTILE, key, **fields))
    await asyncio.to_thread(engine.tokenizer.stuck.get, timeout=240)  # noqa: TID251
    return asking


def _call(response, is_streamed):
    if is_streamed:
        (call,) = [
            call
            for chunk in valid_chat_chunks(response.text)
            for choice in chunk.choices
            for call in choice.delta.tool_calls or ()
        ]
    else:
        (call,) = valid_chat(response.json()).choices[0].message.tool_calls
    return call.function.name, json.loads(call.function.arguments)


async def _count(client, outcome):
    text = (await client.get("/metrics", headers={"Authorization": "Bearer alice"})).text
    name = f'reprise_tool_call_parses_total{{outcome="{outcome}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
async def test_calls_of_other_clients_are_parsed_while_hostile_ones_run(client, engine, is_streamed):
    stuck = [await _ask_and_get_stuck(client, engine)]
    stuck += [asyncio.create_task(_ask(client, HOSTILE, "mallory", stream=True)) for _ in range(6)]
    for _ in range(3):
        response = await _ask(client, ROME, "alice", stream=is_streamed)
        assert _call(response, is_streamed) == ("weather", {"city": "Rome"})
    assert not any(task.done() for task in stuck)
    engine.tokenizer.may_end.set()
    for task in stuck:
        assert "hostile" in (await task).text
    assert await _count(client, "limit") == len(stuck)
    assert await _count(client, "parsed") == 3


async def test_mlx_lm_s_own_parser_may_be_exploited(client, engine):
    engine.tokenizer = Gemma4Tokenizer()
    hostile = f"<tool_call>{'call:f{' * 8000}</tool_call>"
    valid = '<tool_call>call:weather{city:<|"|>Rome<|"|>}</tool_call>'
    engine.script = lambda fake, job: says(hostile if b"hostile" in bytes(job.request.prompt) else valid)(
        fake, job
    )
    asking = [asyncio.create_task(_ask(client, "hostile", "mallory")) for _ in range(2)]
    for _ in range(3):
        assert _call(await _ask(client, "hello", "alice"), False) == ("weather", {"city": "Rome"})
    for task in asking:
        assert valid_chat((await task).json()).choices[0].message.content == hostile


async def test_a_call_that_hits_the_limit_is_text_and_is_logged(client, engine, caplog):
    engine.tokenizer.may_end.set()
    with caplog.at_level(logging.WARNING):
        (choice,) = valid_chat((await _ask(client, HOSTILE + " ok", "mallory")).json()).choices
    assert (choice.message.content, choice.finish_reason) == (f"user: {HOSTILE} ok\n", "stop")
    assert "a tool call of 14 characters is sent as text: it took too much" in caplog.text
    assert "hostile" not in caplog.text


async def test_what_precedes_and_follows_a_call_is_streamed_in_order(client):
    response = await _ask(client, f"a{ROME}b{ROME}", "alice", stream=True)
    deltas = [choice.delta for chunk in valid_chat_chunks(response.text) for choice in chunk.choices]
    said = (delta.content or ("CALL" if delta.tool_calls else "") for delta in deltas)
    assert "".join(said) == "user: aCALLbCALL"


async def test_a_client_that_leaves_gives_up_its_slots(client, engine):
    """The slot of the text that is being parsed ends with its process."""
    parsing = await _ask_and_get_stuck(client, engine)
    waiting = [asyncio.create_task(_ask(client, HOSTILE, "mallory", stream=True)) for _ in range(3)]
    assert _call(await _ask(client, ROME, "alice"), False)
    for task in (parsing, *waiting):
        task.cancel()
    await asyncio.gather(parsing, *waiting, return_exceptions=True)
    own = asyncio.create_task(_ask(client, ROME, "mallory"))
    assert _call(await _ask(client, ROME, "alice"), False)
    assert not own.done()
    engine.tokenizer.may_end.set()
    assert _call(await own, False) == ("weather", {"city": "Rome"})
    assert engine.tokenizer.stuck.empty()


def test_a_client_that_disconnects_is_noticed_while_its_call_is_parsed(engine):
    app = create_app(engine, Settings(max_rows=1, max_queue=1))
    with served(app) as url:
        body = {"messages": [{"role": "user", "content": HOSTILE}], "tools": TOOLS}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + PATH, json=body, timeout=httpx.Timeout(10, read=0.3))
        left = 'reprise_requests_total{endpoint="/v1/chat/completions",status="499"} 1.0'
        assert any(left in httpx.get(f"{url}/metrics").text for _ in range(100))


async def test_more_texts_of_a_client_than_may_wait_are_text(engine, caplog):
    parsing = ToolCallParsing(engine, Metrics(engine), max_waiting=1)

    def parse(client, text):
        return asyncio.create_task(parsing.parse(client, "req-1", text, b"[]"))

    hostile = [parse("mallory", "hostile") for _ in range(2)]
    assert await parse("mallory", '{"name": "f"}') == ()
    assert "too many others of this client are waiting" in caplog.text
    assert await parse("alice", '{"name": "f"}') == [WrittenCall("f", "{}")]
    engine.tokenizer.may_end.set()
    assert await asyncio.gather(*hostile) == [(), ()]
    parsing.close()


async def test_when_all_processes_are_busy_the_next_free_one_serves_who_waits_longest(client, engine):
    stuck = [await _ask_and_get_stuck(client, engine, f"mallory-{i}") for i in range(MAX_PARSES)]
    others = [asyncio.create_task(_ask(client, HOSTILE, f"mallory-{i}")) for i in range(MAX_PARSES)]
    valid = asyncio.create_task(_ask(client, ROME, "alice"))
    engine.tokenizer.may_end.set()
    assert _call(await valid, False) == ("weather", {"city": "Rome"})
    await asyncio.gather(*stuck, *others)


def test_while_a_call_is_parsed_the_stream_is_kept_alive_and_the_server_can_stop(engine):
    app = create_app(engine, Settings(keep_alive_s=0.05))
    body = {"messages": [{"role": "user", "content": HOSTILE}], "tools": TOOLS, "stream": True}
    with (
        served(app) as url,
        httpx.Client() as http,
        http.stream("POST", url + PATH, json=body, timeout=240) as response,
    ):
        comments = (line for line in response.iter_lines() if line.startswith(":"))
        assert [next(comments) for _ in range(3)] == [": keep-alive"] * 3
        assert httpx.get(f"{url}/health").status_code == 200
