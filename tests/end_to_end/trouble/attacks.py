"""Send hostile requests of every kind at once, from a process of their own, and report how they ended.

    python -m tests.end_to_end.trouble.attacks URL SECONDS

SECONDS: how long to send requests. With 0, each kind is sent once, in a small size, and has to end.
Prints an Outcome as JSON.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.end_to_end.conftest import CONTEXT_TOKENS
from tests.end_to_end.trouble.traffic import REFUSED

MODEL = {"model": "demo"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATIENCE_S, GRACE_S = 600, 20
END_ID = 2
NUM_WAITING, WAITING_TOKENS = 64, 1500
"""Longer ones would leave no time for anything else: 64 prompts of 8,000 tokens take hours on two cores."""
AMBIGUOUS = 'start: s\ns: s s | "a"\n'
FOREVER = MODEL | {"logit_bias": {str(END_ID): -100}}
"""The end token is forbidden."""
HELLO = [{"role": "user", "content": "Find the lantern with color red and size 12."}]
NESTED_ARRAYS = {
    "type": "object",
    "properties": {"s": {"$ref": "#/$defs/s"}},
    "required": ["s"],
    "additionalProperties": False,
    "$defs": {
        "s": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/s"}},
                {"type": "array", "items": {"$ref": "#/$defs/s"}, "minItems": 1},
                {"type": "array", "prefixItems": [{"$ref": "#/$defs/s"}], "items": {"$ref": "#/$defs/s"}},
            ]
        }
    },
}


@dataclass
class Outcome:
    """The results, by kind of attack: how often it was done, and how long the slowest took.

    codes: of the errors that requests got. num_refused: requests that got a Retry-After.
    num_left: kinds whose last request was left at the end. faults: everything that went wrong.
    """

    done: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    num_refused: int = 0
    num_left: int = 0
    faults: list[str] = field(default_factory=list)


class Attacks:
    """Clients that each repeat one hostile request."""

    def __init__(self, url: str) -> None:
        self.outcome = Outcome()
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits)
        self._random = random.Random(1)

        self._kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self._ambiguous_grammar, self._ambiguous_tool, self._broken_characters, self._long_tool_call,
            self._waiting_prompts, self._long_prompt, self._long_prompt_left, self._heavy_sampling,
            self._leave, self._read_slowly, self._huge_body, self._large_schema, self._stops, self._choices,
            self._malformed,
        )  # fmt: skip

    async def run(self, duration_s: float) -> None:
        """Run a client of each kind, which sends at least one request, and none after the time is over.

        Requests that then take another GRACE_S are left, as by clients that give up.
        """
        stop_at = time.monotonic() + duration_s
        async with self._http:
            clients = [asyncio.create_task(self._repeat(kind, stop_at)) for kind in self._kinds]
            _, late = await asyncio.wait(clients, timeout=duration_s + GRACE_S)
            for client in late:
                client.cancel()
            for ended in await asyncio.gather(*clients, return_exceptions=True):
                if ended and not isinstance(ended, asyncio.CancelledError):
                    raise ended
            self.outcome.num_left = len(late)

    async def _repeat(self, kind: Callable[[], Awaitable[None]], stop_at: float) -> None:
        name = kind.__name__.strip("_")
        while True:
            start_s = time.monotonic()
            try:
                await kind()
            # A connection that breaks is a fault of the server as well.
            except (httpx.HTTPError, OSError, AssertionError, ValueError, KeyError) as fault:
                self.outcome.faults.append(f"{name}: {type(fault).__name__}: {fault}")
                await asyncio.sleep(0.2)
            now_s = time.monotonic()
            self.outcome.done[name] += 1
            self.outcome.longest_s[name] = max(now_s - start_s, self.outcome.longest_s.get(name, 0.0))
            if now_s > stop_at:
                return

    async def _ask(self, kind: str, path: str, body: dict[str, Any], *codes: str) -> None:
        """Send a request and read its answer to the end. codes: of errors that it may get instead."""
        if body.get("stream"):
            async with self._http.stream("POST", path, json=body) as response:
                lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
            if response.status_code == 200:
                assert lines, "an empty stream"
                if lines[-1] != "data: [DONE]":
                    self._check_error(kind, json.loads(lines[-1][6:]), codes)
                return
            raise AssertionError(f"status {response.status_code}")
        response = await self._http.post(path, json=body)
        if response.status_code in (429, 503):
            assert "retry-after" in response.headers, response.text
            self.outcome.num_refused += 1
            # Who comes again at once would keep the event loop of this process busy.
            await asyncio.sleep(0.5)
        elif response.status_code == 200:
            ends = [choice["finish_reason"] for choice in response.json()["choices"]]
            assert ends, "no choices"
            assert all(ends), "a choice has no finish_reason"
        else:
            self._check_error(kind, response.json(), codes)

    def _check_error(self, kind: str, body: dict[str, Any], codes: tuple[str, ...]) -> None:
        error = body["error"]
        assert error["message"], error
        code = f"{kind}: {error['code']}"
        self.outcome.codes[code] += 1
        assert error["code"] in codes, error

    async def _ambiguous_grammar(self) -> None:
        body = FOREVER | {"messages": HELLO, "guided_grammar": AMBIGUOUS, "max_tokens": 1000}
        body["stream"] = self._random.random() < 0.5
        await self._ask("ambiguous_grammar", CHAT, body, "grammar_too_complex")

    async def _ambiguous_tool(self) -> None:
        tool = {"name": "nest", "parameters": NESTED_ARRAYS, "strict": True}
        body = FOREVER | {"messages": HELLO, "tools": [{"type": "function", "function": tool}]}
        body |= {"tool_choice": "required", "max_tokens": 400, "temperature": 1.5}
        await self._ask("ambiguous_tool", CHAT, body, "grammar_too_complex")

    async def _broken_characters(self) -> None:
        found = await self._http.post("/tokenize", json={"content": "\N{SNOWMAN}"})
        first = found.json()["tokens"][0]
        body = MODEL | {"prompt": "a", "logit_bias": {str(first): 100}, "stream": True}
        body["max_tokens"] = 2000
        await self._ask("broken_characters", COMPLETIONS, body)

    async def _long_tool_call(self) -> None:
        text = {"type": "string", "pattern": r'^[{}\[\]\\"< ]{200}$'}
        names = [f"p{number}" for number in range(40)]
        schema = {"type": "object", "properties": dict.fromkeys(names, text), "required": names}
        tool = {"name": "find", "parameters": schema | {"additionalProperties": False}, "strict": True}
        body = FOREVER | {"messages": HELLO, "tools": [{"type": "function", "function": tool}]}
        body |= {"tool_choice": "required", "max_tokens": 7000, "temperature": 1.0}
        await self._ask("long_tool_call", CHAT, body | {"stream": self._random.random() < 0.5})

    async def _waiting_prompts(self) -> None:
        shared = [self._random.randrange(300, 4000) for _ in range(WAITING_TOKENS * 3 // 4)]

        async def wait(number: int) -> None:
            own = random.Random(number)
            rest = [own.randrange(300, 4000) for _ in range(WAITING_TOKENS // 4)]
            body = FOREVER | {"prompt": shared + rest, "max_tokens": 8}
            await self._ask("waiting_prompts", COMPLETIONS, body)

        async with asyncio.TaskGroup() as waiting:
            for number in range(NUM_WAITING):
                waiting.create_task(wait(number))

    def _repetitive(self) -> list[int]:
        block = [self._random.randrange(300, 4000) for _ in range(self._random.randint(3, 200))]
        num_tokens = CONTEXT_TOKENS - 64
        return (block * num_tokens)[:num_tokens]

    async def _long_prompt(self) -> None:
        draft = {"type": self._random.choice(["auto", "suffix", "ngram-simple", "ngram-mod"])}
        body = FOREVER | {"prompt": self._repetitive(), "draft": draft, "stream": True}
        body["max_tokens"] = 40
        await self._ask("long_prompt", COMPLETIONS, body)

    async def _long_prompt_left(self) -> None:
        await self._leave_after(COMPLETIONS, FOREVER | {"prompt": self._repetitive()}, 8)

    async def _heavy_sampling(self) -> None:
        body = MODEL | {
            "messages": HELLO,
            "logit_bias": {str(END_ID): -100} | {str(token): -1 for token in range(300, 1300)},
            "n": self._random.randint(1, 3),
            "top_k": 1000,
            "top_p": 0.99,
            "min_p": 0.0001,
            "temperature": 1.3,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
            "logprobs": True,
            "top_logprobs": 20,
            "max_tokens": 100,
        }
        await self._ask("heavy_sampling", CHAT, body)

    async def _leave(self) -> None:
        body = FOREVER | {"messages": HELLO, "n": self._random.randint(1, 4), "max_tokens": 1000}
        await self._leave_after(CHAT, body, 1)

    async def _leave_after(self, path: str, body: dict[str, Any], most_s: float) -> None:
        """Disconnect at any moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0, most_s)):
                await self._http.post(path, json=body | {"stream": self._random.random() < 0.5})

    async def _read_slowly(self) -> None:
        """Read a stream so slowly that the server's buffers fill up, and leave it."""
        body = json.dumps(FOREVER | {"messages": HELLO, "max_tokens": 2000, "stream": True, "n": 2}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {self._http.base_url.netloc.decode()}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        host, port = self._http.base_url.host, self._http.base_url.port
        reader, writer = await asyncio.open_connection(host, port, limit=256)
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            for _ in range(8):
                assert await reader.read(64), "the stream ended early"
                await asyncio.sleep(0.5)
        finally:
            writer.close()

    async def _huge_body(self) -> None:
        text = "word " * round(self._random.choice([0.3, 7]) * 2**20)
        body = MODEL | {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
        codes = "context_length_exceeded", "body_too_large"
        await self._ask("huge_body", CHAT, body, *codes)
        await asyncio.sleep(0.2)

    async def _large_schema(self) -> None:
        deep: dict[str, Any] = {"type": "string"}
        for _ in range(self._random.choice([20, 60, 400])):
            deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
        wide = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(400)}}
        schema = self._random.choice([deep, wide])
        form = {"type": "json_schema", "json_schema": {"name": "large", "schema": schema}}
        body = FOREVER | {"messages": HELLO, "response_format": form, "temperature": 1.5}
        body["max_tokens"] = 100
        codes = "schema_too_deep", "json_too_deep", "grammar_too_complex"
        await self._ask("large_schema", CHAT, body, *codes)

    async def _stops(self) -> None:
        stops = ["a" * 999 + str(n) for n in range(self._random.choice([4, 5000]))]
        body = FOREVER | {"prompt": "a" * 400, "stop": stops, "max_tokens": 100}
        await self._ask("stops", COMPLETIONS, body, "invalid_value")

    async def _choices(self) -> None:
        n = self._random.choice([8, 8, 1000])
        body = FOREVER | {"prompt": ["a", "b"], "n": n, "logprobs": 5, "echo": True}
        body["max_tokens"] = 40
        await self._ask("choices", COMPLETIONS, body, "invalid_value")

    async def _malformed(self) -> None:
        path, body = self._random.choice(REFUSED)
        contents = b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 400, json.dumps(body).encode()
        content = self._random.choice(contents)
        headers = {"Content-Type": "application/json"}
        response = await self._http.post(path, content=content, headers=headers)
        assert 400 <= response.status_code < 500, f"{path} {content[:80]!r}: {response.status_code}"
        assert response.json()["error"]["message"]
        await asyncio.sleep(0.05)


async def main() -> None:
    """Attack as the command line says, and print the outcome."""
    url, duration_s = sys.argv[1], float(sys.argv[2])
    attacks = Attacks(url)
    await attacks.run(duration_s)
    print(json.dumps(vars(attacks.outcome)))


if __name__ == "__main__":
    asyncio.run(main())
