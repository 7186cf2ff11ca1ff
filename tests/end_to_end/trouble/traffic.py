"""Generate mixed traffic: concurrent clients of every kind, and a summary of what happened."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

MODEL = {"model": "demo"}
PATIENCE_S = 600
"""Longer than any request takes, even on a busy machine. A request that takes longer hangs."""
TOPICS = ("a red lantern", "the lamp in the hall", "rain on the roof", "a list of three fruits", "the sea")
ALWAYS_THE_SAME = MODEL | {"prompt": "The lantern is", "max_tokens": 24, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["size"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "measure", "description": "Measure it.", "parameters": SCHEMA, "strict": True},
    }
]
REFUSED: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", MODEL | {"messages": []}),
    ("/v1/chat/completions", MODEL | {"messages": "hello"}),
    ("/v1/chat/completions", {"model": "no such", "messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", MODEL | {"prompt": ""}),
    ("/v1/completions", MODEL | {"prompt": "x", "stop": [5]}),
    ("/v1/completions", MODEL | {"prompt": "x", "logit_bias": {"99999999": 1}}),
    ("/v1/completions", MODEL | {"prompt": "x", "n": 1000}),
    ("/v1/completions", MODEL | {"prompt": [10**9]}),
    ("/v1/completions", MODEL | {"prompt": "word " * 9000}),
    ("/v1/completions", MODEL | {"prompt": "x", "stream": "perhaps"}),
    ("/v1/messages", MODEL | {"messages": [], "max_tokens": 5}),
    ("/v1/responses", MODEL | {"input": "x", "previous_response_id": "resp_none"}),
    ("/v1/responses", MODEL | {"input": [{"type": "item_reference", "id": "msg_none"}]}),
    ("/tokenize", {"text": 5}),
    ("/nowhere", {}),
]
"""Requests that are refused with a status from 400 to 499."""


@dataclass
class Outcome:
    """The results of the traffic.

    done: number of requests by kind. longest_s: duration of the slowest one by kind.
    num_refused: requests that were refused with a Retry-After. faults: everything that went wrong.
    """

    done: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    num_refused: int = 0
    faults: list[str] = field(default_factory=list)


class Traffic:
    """Concurrent clients, each of which sends one request after the other, drawn at random from the seed."""

    def __init__(self, url: str, seed: int) -> None:
        self.outcome = Outcome()
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S)
        self._random = random.Random(seed)
        self._same: set[str] = set()
        self._undealt: list[Callable[[], Awaitable[None]]] = []
        self._kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self._chat, self._stream_chat, self._talk, self._choices, self._say_the_same, self._message,
            self._chain, self._form, self._call_tool, self._predict, self._leave_stream, self._leave_answer,
            self._be_refused, self._be_refused, self._send_nonsense, self._look_around,
        )  # fmt: skip

    @property
    def num_kinds(self) -> int:
        """The number of kinds of requests."""
        return len(set(self._kinds))

    async def run(self, num_clients: int, duration_s: float) -> None:
        """Run num_clients clients for duration_s seconds, then close their connections."""
        end = asyncio.get_running_loop().time() + duration_s

        async def work() -> None:
            while asyncio.get_running_loop().time() < end:
                await self._do(self._deal())

        await asyncio.gather(*(work() for _ in range(num_clients)))
        await self._http.aclose()

    def _deal(self) -> Callable[[], Awaitable[None]]:
        """Draw a kind, and each of them before any comes again."""
        if not self._undealt:
            self._undealt = self._random.sample(self._kinds, len(self._kinds))
        return self._undealt.pop()

    async def _do(self, kind: Callable[[], Awaitable[None]]) -> None:
        name = kind.__name__.strip("_")
        start_s = time.monotonic()
        try:
            await kind()
        # A connection that breaks is a fault of the server as well.
        except (httpx.HTTPError, AssertionError, ValueError, KeyError) as fault:
            self.outcome.faults.append(f"{name}: {type(fault).__name__}: {fault}")
        self.outcome.done[name] += 1
        spent_s = time.monotonic() - start_s
        self.outcome.longest_s[name] = max(spent_s, self.outcome.longest_s.get(name, 0.0))

    def _question(self, num_words: int = 0) -> list[dict[str, str]]:
        filler = " ".join(self._random.choice(TOPICS) for _ in range(num_words))
        return [{"role": "user", "content": f"Tell me about {self._random.choice(TOPICS)}. {filler}".strip()}]

    def _limits(self) -> dict[str, Any]:
        return {"max_tokens": self._random.randint(1, 48), "temperature": self._random.choice([0, 0.7, 1.5])}

    async def _post(self, path: str, body: Any, **options: Any) -> httpx.Response | None:
        """Send a request; return the response, or None if the server refused it with a Retry-After."""
        response = await self._http.post(path, json=body, **options)
        if response.status_code in (429, 503):
            assert "retry-after" in response.headers, response.text
            self.outcome.num_refused += 1
            return None
        assert response.status_code == 200, f"{response.status_code}: {response.text[:300]}"
        return response

    async def _stream(self, path: str, body: Any, num_lines: int | None = None) -> list[str]:
        """Return the lines of a stream. With num_lines, disconnect after that many."""
        lines: list[str] = []
        async with self._http.stream("POST", path, json=body | {"stream": True}) as response:
            if response.status_code in (429, 503):
                self.outcome.num_refused += 1
                return []
            assert response.status_code == 200, response.status_code
            async for line in response.aiter_lines():
                lines.append(line)
                if num_lines is not None and len(lines) >= num_lines:
                    break
        return [line for line in lines if line]

    async def _chat(self) -> None:
        body = MODEL | {"messages": self._question(self._random.randint(0, 60))} | self._limits()
        if response := await self._post("/v1/chat/completions", body):
            assert response.json()["usage"]["completion_tokens"] <= body["max_tokens"]

    async def _stream_chat(self) -> None:
        body = MODEL | {"messages": self._question()} | self._limits()
        if lines := await self._stream("/v1/chat/completions", body):
            assert lines[-1] == "data: [DONE]", lines[-1]

    async def _talk(self) -> None:
        """Send several turns of one conversation, each with the whole history."""
        messages = self._question(20)
        for _ in range(3):
            response = await self._post(
                "/v1/chat/completions", MODEL | {"messages": messages, "max_tokens": 16, "temperature": 0}
            )
            if response is None:
                return
            said = response.json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said or "."}, *self._question()]

    async def _choices(self) -> None:
        n = self._random.randint(2, 4)
        body = MODEL | {"prompt": [self._random.choice(TOPICS), "b"], "n": n, "logprobs": 2} | self._limits()
        if response := await self._post("/v1/completions", body):
            assert len(response.json()["choices"]) == 2 * n

    async def _say_the_same(self) -> None:
        """Send the same request every time: whatever else runs, the answer must be the same."""
        if response := await self._post("/v1/completions", ALWAYS_THE_SAME):
            self._same.add(response.json()["choices"][0]["text"])
            assert len(self._same) == 1, f"different answers: {self._same}"

    async def _message(self) -> None:
        body = MODEL | {"messages": self._question(), "max_tokens": 12}
        if lines := await self._stream("/v1/messages", body):
            assert "message_stop" in lines[-1], lines[-1]

    async def _chain(self) -> None:
        first = await self._post("/v1/responses", MODEL | {"input": "Hello!", "max_output_tokens": 16})
        if first is None:
            return
        known = first.json()["id"]
        body = MODEL | {"input": "And then?", "previous_response_id": known, "max_output_tokens": 16}
        second = await self._http.post("/v1/responses", json=body)
        # Others may have filled the store in the meantime.
        assert second.status_code in (200, 404, 429), second.text

    async def _form(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "size", "schema": SCHEMA, "strict": True}}
        body = MODEL | {"messages": self._question(), "response_format": form, "max_tokens": 40}
        if response := await self._post("/v1/chat/completions", body):
            (choice,) = response.json()["choices"]
            if choice["finish_reason"] == "stop":
                assert 1 <= json.loads(choice["message"]["content"])["size"] <= 99

    async def _call_tool(self) -> None:
        body = MODEL | {
            "messages": self._question(),
            "tools": TOOLS,
            "tool_choice": "required",
            "max_tokens": 60,
        }
        if response := await self._post("/v1/chat/completions", body):
            (choice,) = response.json()["choices"]
            assert choice["finish_reason"] in ("tool_calls", "length"), choice

    async def _predict(self) -> None:
        said = "The lantern is red. The lantern is small. " * 4
        body = MODEL | {"messages": [{"role": "user", "content": f"Repeat: {said}"}], "max_tokens": 40}
        await self._post("/v1/chat/completions", body | {"prediction": {"type": "content", "content": said}})

    async def _leave_stream(self) -> None:
        """Disconnect in the middle of a stream."""
        body = MODEL | {"messages": self._question(), "max_tokens": 400, "n": self._random.randint(1, 3)}
        await self._stream("/v1/chat/completions", body, self._random.randint(1, 20))

    async def _leave_answer(self) -> None:
        """Disconnect before the response, while the request waits, prefills or decodes."""
        body = MODEL | {"messages": self._question(80), "max_tokens": 400}
        wait = httpx.Timeout(PATIENCE_S, read=self._random.uniform(0.01, 0.6))
        with contextlib.suppress(httpx.ReadTimeout):
            await self._post("/v1/chat/completions", body, timeout=wait)

    async def _be_refused(self) -> None:
        path, body = self._random.choice(REFUSED)
        response = await self._http.post(path, json=body)
        assert 400 <= response.status_code < 500, f"{path} {str(body)[:80]}: {response.status_code}"
        assert "error" in response.json()

    async def _send_nonsense(self) -> None:
        content = self._random.choice([b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 400, b"null"])
        headers = {"Content-Type": "application/json"}
        response = await self._http.post("/v1/chat/completions", content=content, headers=headers)
        assert response.status_code == 400, response.status_code

    async def _look_around(self) -> None:
        for path in ("/v1/models", "/metrics", "/", "/v1/ngram-mod"):
            response = await self._http.get(path)
            assert response.status_code == 200, f"{path}: {response.status_code}"
        assert (await self._http.get("/health")).json()["status"] == "ready"
        response = await self._http.post("/tokenize", json={"content": "a red lantern"})
        assert response.status_code == 200, response.text
