"""Measure the longest piece of the event loop's work for the largest bodies that pass, on every route.

    python -m tests.server.longest_pieces [NAME ...]

NAME: only bodies and routes whose names have it. Prints for each the processor time of the longest piece, and
the longest wait of a thread that wants to run every half a millisecond: other threads keep the interpreter.
The figures of docs/security.md are from here, and from tests.server.requests.longest_waits.
"""

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from reprise.config.settings import Settings
from reprise.server.app import create_app
from tests.server.fake_engine import FakeEngine
from tests.server.served import served
from tests.server.waits import measured_waits

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT, INPUT = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses/input_tokens"
TOKENIZE = "/tokenize"
NUM_ROUNDS = 2
"""The best of them counts."""
LONG = "a" * (31 * 2**20)
WIDE = "\N{GRINNING FACE}" + "a" * (7 * 2**20)
SPACES = " " * (31 * 2**20)
_PARTS = [{"type": "text", "text": "a"}] * 8000
_TEXTS = [{"type": "text", "text": "a" * 3800}] * 8000
_ARGUMENTS = {f"key{number}": "a" * 300 for number in range(90_000)}
_NUMBERS = {"a": [1] * 900_000}
_CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * 8000
_SCHEMA = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(480)}}
_TOOL = {"name": "f", "description": "a" * 30_000}
_ANY = [{"anyOf": [{"const": f"{n}-{m}"} for m in range(40)]} for n in range(60)]


def _tools(num: int, **more: Any) -> list[dict[str, Any]]:
    function = {"description": "a" * (30 * 2**20 // num), "parameters": {"type": "object"}} | more
    return [{"type": "function", "function": {"name": f"f{n}"} | function} for n in range(num)]


def _user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def _called(arguments: Any) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": arguments}
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}]}


def _object(*kinds: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": kind for n, kind in enumerate(kinds)}}


def _following(schema: Any) -> dict[str, Any]:
    named = {"name": "a", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


_HELLO = _user("a")
_CHATS: dict[str, dict[str, Any]] = {
    "text": _user(LONG),
    "wide text": _user(WIDE),
    "spaces": _user(SPACES),
    "parts": _user(_PARTS),
    "long parts": _user(_TEXTS),
    "messages": {"messages": [{"role": "user", "content": "a" * 7000}] * 4096},
    "systems": {"messages": [{"role": "system", "content": "a" * 7000}] * 4096},
    "prefill": {"messages": [*_HELLO["messages"], {"role": "assistant", "content": LONG}]},
    "description": _HELLO | {"tools": _tools(1)},
    "tools": _HELLO | {"tools": _tools(1024)},
    "schemas": _HELLO | {"tools": _tools(1024, parameters=_SCHEMA, description="")},
    "metadata": _HELLO | {"metadata": {"a": LONG}},
    "unknown": _HELLO | {"unknown": LONG},
    "user": _HELLO | {"user": LONG},
    "kwargs": _HELLO | {"chat_template_kwargs": {"a": LONG}},
    "kwargs numbers": _HELLO | {"chat_template_kwargs": _NUMBERS},
    "stop": _HELLO | {"stop": [LONG]},
    "model": _HELLO | {"model": LONG},
}
_OPENAI = {
    "arguments": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
             "function": {"name": "f", "arguments": json.dumps(_ARGUMENTS)}}]},
        ]
    },
    "calls": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": _CALLS}]},
    "prediction": _HELLO | {"prediction": {"type": "content", "content": LONG}},
    "strict tools": _HELLO
    | {"tools": _tools(5, parameters=_SCHEMA, strict=True), "tool_choice": "required"},
    "schema": _HELLO | _following(_SCHEMA),
    "any of": _HELLO | _following(_object(*_ANY)),
    "huge schema": _HELLO | _following(_object(*[{"type": "string"}] * 30_000)),
    "truncation": {"truncation": "auto", "messages": [{"role": "user", "content": "a" * 7000}] * 4096},
    "logit_bias": _HELLO | {"logit_bias": {str(n): 1 for n in range(90_000)}},
    "guided choice": _HELLO | {"guided_choice": [f"choice {n}" for n in range(900_000)]},
    "guided regex": _HELLO | {"guided_regex": "a" * 2**20},
    "guided grammar": _HELLO | {"guided_grammar": "start: " + "a " * 2**20},
}  # fmt: skip
_ANTHROPIC = {
    "arguments": _called(_ARGUMENTS),
    "numbers": _called(_NUMBERS),
    "system": _HELLO | {"system": LONG},
    "billing": _HELLO | {"system": "x-anthropic-billing-header:" + LONG},
    "system parts": _HELLO | {"system": _TEXTS},
    "output": _HELLO
    | {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}, "max_tokens": 1},
}
_ITEMS = {
    "input": {"input": LONG},
    "wide input": {"input": WIDE},
    "instructions": {"input": "a", "instructions": LONG},
    "streamed instructions": {"input": "a", "instructions": LONG, "stream": True},
    "streamed wide instructions": {"input": "a", "instructions": WIDE, "stream": True},
    "items": {"input": [{"role": "user", "content": "a" * 3500}] * 8192},
    "calls": {
        "input": [
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "a" * 3500},
        ]
        * 4000
    },
    "tools": {"input": "a", "tools": [{"type": "function", **_TOOL, "name": f"f{n}"} for n in range(1000)]},
    "streamed tools": {
        "stream": True,
        "input": "a",
        "tools": [{"type": "function", **_TOOL, "name": f"f{n}"} for n in range(1000)],
    },
    "metadata": {"input": "a", "metadata": {"a": LONG}},
    "user": {"input": "a", "user": LONG, "prompt_cache_key": LONG[: 2**20]},
    "tool choice": {"input": "a", "tool_choice": {"type": "function", "name": LONG}},
    "previous": {"input": "a", "previous_response_id": LONG},
    "references": {"input": [{"type": "item_reference", "id": f"a{n}"} for n in range(8000)]},
}
_OLLAMA_CALL = {"function": {"name": "f", "arguments": _ARGUMENTS}}
_OLLAMA = {
    "arguments": {"messages": [*_HELLO["messages"], {"role": "assistant", "tool_calls": [_OLLAMA_CALL]}]},
    "calls": {
        "messages": [
            *_HELLO["messages"],
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}] * 4000},
            *[{"role": "tool", "tool_name": "f", "content": "a" * 7000}] * 4000,
        ]
    },
    "images": {"messages": [{"role": "user", "content": "a", "images": ["a" * 4_000_000] * 7}]},
    "many images": {"messages": [{"role": "user", "content": "a", "images": ["a"] * 900_000}]},
    "format": _HELLO | {"format": _SCHEMA},
    "huge format": _HELLO | {"format": _object(*[{"type": "string"}] * 30_000)},
    "options": _HELLO | {"options": {f"key{n}": 0 for n in range(90_000)}},
    "stops": _HELLO | {"options": {"stop": ["a"] * 900_000}},
}
_PROMPTED = {
    "text": {"prompt": LONG},
    "wide text": {"prompt": WIDE},
    "system": {"prompt": "a", "system": LONG},
    "raw": {"prompt": LONG, "raw": True},
    "suffix": {"prompt": "a", "suffix": LONG},
    "images": {"prompt": "a", "images": ["a"] * 900_000},
    "template": {"prompt": "a", "template": LONG},
    "context": {"prompt": "a", "context": [5] * 900_000},
}
_TEXT_BODIES = {
    "text": {"prompt": LONG},
    "wide text": {"prompt": WIDE},
    "texts": {"prompt": ["a"] * 900_000},
    "ids": {"prompt": [5] * 900_000},
    "lists of ids": {"prompt": [[5] * 9] * 90_000},
    "suffix": {"prompt": "a", "suffix": LONG},
    "echo": {"prompt": [5] * 250_000, "echo": True, "max_tokens": 1},
    "truncated ids": {"prompt": [5] * 900_000, "truncate_prompt_tokens": 100},
    "stops": {"prompt": "a", "stop": ["a"] * 900_000},
    "banned": {"prompt": "a", "stop_token_ids": [5] * 900_000},
    "allowed": {"prompt": "a", "allowed_token_ids": [5] * 900_000},
}
ROUTES: dict[str, dict[str, dict[str, Any]]] = {
    CHAT: _CHATS | _OPENAI,
    MESSAGES: {name: {"max_tokens": 1} | body for name, body in (_CHATS | _ANTHROPIC).items()},
    COUNT: {name: {k: v for k, v in body.items() if k != "max_tokens"} for name, body in _ANTHROPIC.items()},
    RESPONSES: _ITEMS,
    INPUT: _ITEMS,
    RESPONSES + "/compact": {name: _ITEMS[name] for name in ("input", "instructions", "items", "calls")},
    COMPLETIONS: _TEXT_BODIES,
    "/infill": {"text": {"input_prefix": LONG, "input_suffix": "a"}, "extra": {"input_prefix": "a",
        "input_suffix": "a", "input_extra": [{"filename": "a", "text": "a" * 300}] * 90_000}},
    TOKENIZE: {
        "text": {"content": LONG},
        "pieces": {"content": "a" * 240_000, "with_pieces": True, "return_token_strs": True},
        **{name: {"messages": _CHATS[name]["messages"]} for name in ("text", "parts", "messages")},
    },
    "/detokenize": {"tokens": {"tokens": [97] * 250_000}, "too many": {"tokens": [97] * 900_000}},
    "/api/chat": _CHATS | _OLLAMA,
    "/api/generate": _PROMPTED,
    "/api/show": {"model": {"model": LONG}},
    "/v1/embeddings": {"texts": {"input": ["a"] * 900_000}},
    "/v1/models/load": {"model": {"model": LONG}},
}  # fmt: skip


class Pieces:
    """How much processor time each piece of the event loop's work took."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.what = ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure what every loop does, whatever thread it is on."""
        run = asyncio.events.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            start_s = time.thread_time()
            run(handle)
            spent_s = time.thread_time() - start_s
            if spent_s > self.longest_s:
                self.longest_s, self.what = spent_s, repr(handle)[:200]

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.events.Handle._run = run  # type: ignore[method-assign]


def _ids(text: str) -> list[int]:
    """Return an id for every eighth character, a slice at a time as the real tokenizer does."""
    ids: list[int] = []
    for start in range(0, len(text), 2**16):
        ids += [97] * (len(text[start : start + 2**16]) // 8)
    return ids


def main(*names: str) -> None:
    """Send every body, and say what the longest piece was."""
    logging.disable(logging.WARNING)
    engine = FakeEngine()
    # So long that no text is refused before it has been read in full.
    engine.info = replace(engine.info, context_tokens=262_144)
    engine.tokenizer.longest_token = 256
    engine.tokenizer.encode = engine.tokenizer.encode_answer = _ids
    pieces = Pieces()
    with (
        measured_waits() as waits,
        pieces.measured(),
        served(create_app(engine, Settings())) as url,
        httpx.Client(timeout=600) as http,
    ):
        http.post(url + COMPLETIONS, json={"prompt": "a"})
        gc.freeze()
        for route, bodies in ROUTES.items():
            for name, body in bodies.items():
                if names and not any(one in f"{route} {name}" for one in names):
                    continue
                text = json.dumps(body, ensure_ascii=False).encode()
                found, waited = [], []
                for _ in range(NUM_ROUNDS):
                    pieces.longest_s = 0
                    waits.clear()
                    try:
                        answer = http.post(
                            url + route, content=text, headers={"Content-Type": "application/json"}
                        )
                        status = answer.status_code
                    except httpx.HTTPError as fault:
                        status = repr(fault)[:40]
                    found.append((pieces.longest_s, pieces.what))
                    waited.append(max(waits))
                longest_s, what = min(found)
                shown = f"{route:25} {name:22} {len(text) / 2**20:5.1f} MiB {status}"
                figures = f"{1000 * longest_s:6.1f} ms, waits {1000 * min(waited):6.1f} ms"
                print(shown, figures, what if longest_s > 0.015 else "", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
