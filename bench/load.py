"""Load on a server: N concurrent streams, each sending its next request when the previous one ended."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from bench.answer import Answer, read_answer
from bench.exchange import IDLE_LIMIT_S, Transcript, post
from bench.measurement import Arrival, Measurement, Round
from bench.prompts import Prompt
from bench.statistics import share_tokens

CountTokens = Callable[[str], int]
"""Returns the number of tokens of a text on its own."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What every request contains besides its prompt.

    forbidden_ids: tokens that would end the answer early; they get a logit bias of -100.
    seed: sent only if not None. mlx_lm.server does not batch requests with a seed.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    forbidden_ids: tuple[int, ...] = ()

    def body(self, model: str, prompt: Prompt) -> bytes:
        """Build the body of POST /v1/chat/completions."""
        fields: dict[str, Any] = {
            "model": model,
            "messages": prompt.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.forbidden_ids:
            fields["logit_bias"] = {str(token): -100 for token in self.forbidden_ids}
        if self.seed is not None:
            fields["seed"] = self.seed
        return json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class ServerUnderLoad:
    """A server to measure. url: without /v1. model: the name to send. api_key: if it needs one."""

    name: str
    url: str
    model: str
    count_tokens: CountTokens
    idle_limit_s: float = IDLE_LIMIT_S
    api_key: str | None = None

    def measure(
        self, prompts: Sequence[Prompt], options: RequestOptions, concurrency: int, number: int
    ) -> Round:
        """Run one round. Failed requests become Measurements with an error; nothing is raised for them."""
        bodies = [options.body(self.model, prompt) for prompt in prompts]
        began, transcripts = asyncio.run(self._drive(bodies, concurrency))
        measurements = [
            _measurement(index, prompt, options, transcript, began, self.count_tokens)
            for index, (prompt, transcript) in enumerate(zip(prompts, transcripts, strict=True))
        ]
        wall_s = max(m.started_s + m.duration_s for m in measurements)
        return Round(self.name, concurrency, number, wall_s, tuple(measurements))

    async def _drive(self, bodies: Sequence[bytes], concurrency: int) -> tuple[float, list[Transcript]]:
        transcripts: dict[int, Transcript] = {}
        waiting = iter(enumerate(bodies))

        async def stream() -> None:
            # All streams share the iterator, so that none idles while requests are left.
            for index, body in waiting:
                url = f"{self.url}/v1/chat/completions"
                transcripts[index] = await post(url, body, self.idle_limit_s, self.api_key)

        began = perf_counter()
        await asyncio.gather(*(stream() for _ in range(concurrency)))
        return began, [transcripts[index] for index in range(len(bodies))]


def _measurement(
    request: int,
    prompt: Prompt,
    options: RequestOptions,
    transcript: Transcript,
    began: float,
    count: CountTokens,
) -> Measurement:
    answer = read_answer(transcript)
    usage = answer.usage or {}
    counted = [max(1, count(text)) for _, text in answer.chunks]
    reported = usage.get("completion_tokens")
    num_tokens = reported if isinstance(reported, int) else sum(counted)
    return Measurement(
        request=request,
        num_prompt_tokens_asked=len(prompt.ids),
        max_tokens=options.max_tokens,
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        num_completion_tokens=num_tokens if answer.error is None else 0,
        counted_by="usage" if isinstance(reported, int) else "text",
        num_chunks=len(answer.chunks),
        started_s=transcript.started - began,
        duration_s=answer.ended - transcript.started,
        arrivals=_arrivals(answer, num_tokens, counted, transcript.started),
        finish_reason=answer.finish_reason,
        error=answer.error,
        is_refused=answer.is_refused,
    )


def _arrivals(answer: Answer, num_tokens: int, counted: Sequence[int], started: float) -> tuple[Arrival, ...]:
    """Return times and token counts of the text; chunks of the same read become one arrival."""
    shares = share_tokens(num_tokens, [text for _, text in answer.chunks], counted)
    by_time: dict[float, float] = {}
    for (at, _), tokens in zip(answer.chunks, shares, strict=True):
        by_time[at] = by_time.get(at, 0.0) + tokens
    return tuple(Arrival(at - started, tokens) for at, tokens in by_time.items())
