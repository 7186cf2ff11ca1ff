"""A model in Python: batches, streams, coroutines, tools, schemas, images, embeddings, errors, interrupts."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from pydantic import BaseModel

from reprise import LLM, RepriseError, SamplingParams
from reprise.config.setting import SettingsError
from reprise.in_process import Mailbox
from reprise.server.errors import BadRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=24)
CHAT = [{"role": "user", "content": "Who are you?"}]
RECORD = [{"role": "user", "content": 'Return the record as JSON.\n\n{"name": "Ada", "level": 12}'}]
ENDLESS = SamplingParams(max_tokens=60_000, ignore_eos=True)
"""Takes hours: a test that passes has cancelled it."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(progress=False, max_rows=4, max_queue=1) as made:
        yield made


def test_a_batch_has_the_answers_that_its_prompts_get_alone(llm: LLM) -> None:
    prompts = ["Once upon a time", "The cat sat on", llm.encode("Find the lantern"), "A", "B", "C", "D", "E"]
    params = [SamplingParams(max_tokens=9, seed=seed) for seed in range(len(prompts))]
    # More than may wait for a row: the others wait before the queue.
    together = llm.generate(prompts, params)
    alone = [llm.generate(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.usage["completion_tokens"] for one in together] == [len(one.token_ids) for one in alone]


def test_no_prompts_have_no_answers(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert llm.generate([], []) == []
    assert llm.chat([]) == []


def test_a_seed_gives_its_answer_again_and_drafts_change_no_token(llm: LLM) -> None:
    sampled = [
        llm.chat(RECORD, SamplingParams(seed=seed, max_tokens=24, draft=draft))
        for seed in (1, 2)
        for draft in (None, False, "suffix")
    ]
    assert all(one.token_ids == other.token_ids for one, other in pairwise(sampled[:3]))
    assert all(one.token_ids == other.token_ids for one, other in pairwise(sampled[3:]))
    assert sampled[0].prompt_token_ids == sampled[3].prompt_token_ids
    assert llm.chat(RECORD, SamplingParams(temperature=0, draft=False)).timings["draft_n"] == 0


def test_a_stream_brings_the_whole_answer_in_pieces(llm: LLM) -> None:
    whole = llm.chat(CHAT, GREEDY)
    stream = llm.stream(CHAT, GREEDY)
    assert "".join(delta.text for delta in stream) == whole.text
    for name in ("text", "token_ids", "prompt_token_ids", "finish_reason", "message"):
        assert getattr(stream.completion, name) == getattr(whole, name)
    assert whole.message == {"role": "assistant", "content": whole.text}
    assert "".join(delta.text for delta in llm.stream("Once", GREEDY)) == llm.generate("Once", GREEDY).text
    assert list(stream) == []


async def test_coroutines_iterate_and_await(llm: LLM) -> None:
    whole = await llm.stream(CHAT, GREEDY)
    assert "".join([delta.text async for delta in llm.stream(CHAT, GREEDY)]) == whole.text
    both = await asyncio.gather(llm.stream(CHAT, GREEDY), llm.stream("Once", GREEDY))
    assert both[0].token_ids == whole.token_ids
    async with llm.stream(CHAT, ENDLESS) as endless:
        await anext(endless)
    waiting = asyncio.ensure_future(_read(llm.stream(CHAT, ENDLESS)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    # Of four rows, so two that went on would still leave two.
    assert len(await asyncio.gather(*[llm.stream(CHAT, GREEDY) for _ in range(4)])) == 4


async def _read(stream: object) -> None:
    await stream  # type: ignore[misc]


def test_threads_share_a_batch(llm: LLM) -> None:
    alone = llm.chat(CHAT, GREEDY).token_ids
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: llm.chat(CHAT, GREEDY).token_ids, range(6)))
    assert answers == [alone] * 6


def test_log_probabilities_are_of_the_answer_s_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2)
    for answer in (llm.chat(CHAT, params), llm.generate("Once", params), llm.stream(CHAT, params).read()):
        assert "".join(one.token for one in answer.logprobs) == answer.text
        assert all(len(one.top) == 2 and max(one.top.values()) == one.logprob for one in answer.logprobs)


def test_schemas_patterns_and_grammars_bind_the_answer(llm: LLM) -> None:
    class Person(BaseModel):
        name: str
        level: int

    limit = {"temperature": 0, "max_tokens": 60}
    by_class = llm.chat(RECORD, SamplingParams(json_schema=Person, **limit))
    assert Person.model_validate_json(by_class.text) == Person(name="Ada", level=12)
    by_dict = llm.chat(RECORD, SamplingParams(json_schema=Person.model_json_schema(), **limit))
    assert by_dict.token_ids == by_class.token_ids
    assert llm.generate("x", SamplingParams(regex="ab{3}", **limit)).text == "abbb"
    assert llm.generate("x", SamplingParams(grammar='start: "yes!"', **limit)).text == "yes!"
    assert llm.generate("Count: 1 2 3 4", SamplingParams(stop="5", stop_token_ids=[3], **limit)).finish_reason


def test_tools_are_called_and_their_results_are_read(llm: LLM) -> None:
    parameters = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    tools = [{"type": "function", "function": {"name": "find_lantern", "parameters": parameters}}]
    messages = [{"role": "user", "content": "Find the lantern with size 12."}]
    asked = llm.chat(messages, GREEDY, tools=tools, tool_choice="required")
    streamed = llm.stream(messages, GREEDY, tools=tools, tool_choice="required").read()
    for one in (asked, streamed):
        (call,) = one.tool_calls
        assert (call.name, list(call.arguments), one.finish_reason) == (
            "find_lantern",
            ["size"],
            "tool_calls",
        )
        assert json.loads(one.message["tool_calls"][0]["function"]["arguments"]) == call.arguments
    assert asked.token_ids == streamed.token_ids
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "red"}
    assert llm.chat([*messages, asked.message, result], GREEDY, tools=tools).finish_reason


def test_a_call_that_the_limit_cuts_has_its_arguments_as_text(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]
    params = SamplingParams(temperature=0, max_tokens=12)
    cut = llm.chat(RECORD, params, tools=tools, tool_choice="required")
    assert cut.finish_reason == "length"
    assert all(isinstance(call.arguments, str) for call in cut.tool_calls)


@pytest.mark.parametrize(
    ("ask", "message", "param"),
    [
        (lambda llm: llm.chat(CHAT, SamplingParams(temperature=9)), "at most 2, not 9", "temperature"),
        (lambda llm: llm.generate([[]]), "'prompt' is empty", "prompt"),
        (lambda llm: llm.generate([[5], [10**6]], GREEDY), "1000000", "prompt[0]"),
        (lambda llm: list(llm.stream([5] * 70_000)), "maximum context length is 65536", "prompt"),
        (lambda llm: llm.embed("x"), "this endpoint is for a model that makes embeddings", "model"),
        (lambda llm: llm.chat(CHAT, model="other"), "The model 'other' does not exist", "model"),
        (lambda llm: llm.chat(CHAT, tool_choice="required"), "tool_choice", "tool_choice"),
    ],
)
def test_errors_have_the_server_s_texts(llm: LLM, ask, message: str, param: str) -> None:
    with pytest.raises(RepriseError, match=message.replace("[", r"\[")) as caught:
        ask(llm)
    assert caught.value.param == param
    assert caught.value.status == (404 if param == "model" and "exist" in message else 400)


def test_several_choices_are_several_prompts(llm: LLM) -> None:
    with pytest.raises(TypeError, match="instead of n, pass the prompt several times"):
        llm.chat(CHAT, n=2)


def test_an_interrupt_cancels_what_is_under_way(llm: LLM) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for begin in (lambda: llm.stream(CHAT, ENDLESS), lambda: llm.stream("Once", ENDLESS)):
            streams = [begin() for _ in range(2)]
            for stream in streams:
                next(stream)
            with pytest.raises(KeyboardInterrupt):
                _interrupt_and_wait(streams[0])
            streams[1].close()
        assert len(llm.generate(["a"] * 4, GREEDY)) == 4
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_stream_that_is_dropped_is_cancelled(llm: LLM) -> None:
    for _ in range(4):
        for delta in llm.stream(CHAT, ENDLESS):
            assert delta
            break
    # All four rows are free again.
    assert len(llm.generate(["a"] * 4, GREEDY)) == 4


def _interrupt_and_wait(stream) -> None:
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
    stream.read()


def test_a_fault_while_a_batch_begins_cancels_what_has_begun(llm: LLM) -> None:
    for _ in range(5):
        with pytest.raises(BadRequestError):
            llm.generate(["Once", "Once"], [ENDLESS, SamplingParams(temperature=9)])
    assert len(llm.generate(["a"] * 4, GREEDY)) == 4


@pytest.mark.usefixtures("llm")
def test_one_is_open_at_a_time_and_knows_its_settings() -> None:
    with pytest.raises(SettingsError, match="close it first"):
        LLM()
    with pytest.raises(SettingsError, match="unknown setting max_row; did you mean max_rows"):
        LLM(max_row=3)


def test_a_mailbox_skips_a_reader_that_has_given_up() -> None:
    box = Mailbox()
    assert box.get().cancel()
    box.put(1)
    box.put(ValueError("two"))
    assert box.get().result() == 1
    with pytest.raises(ValueError, match="two"):
        box.get().result()
    later = box.get()
    box.put(None)
    assert later.result() is None
