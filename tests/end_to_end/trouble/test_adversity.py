"""Hostile requests of every kind at once beside four honest streams, which keep their text and their pace.

.venv/bin/python -m pytest tests/end_to_end/trouble/test_adversity.py -m slow -s    also prints its figures
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import httpx
import openai
import pytest

from reprise.bench.statistics import percentile
from reprise.engine.memory.prefill_plan import MAX_STALL_MS
from tests.end_to_end.conftest import serving

NUM_HONEST, MAX_ROWS = 4, 12
CALM_S, ATTACK_S = 40.0, 300.0
END_ID = 2
ANSWER_TOKENS = 7500
"""More than any of them gets in the time."""
LONG_TOKENS = 6500
"""Of the prompts of those beside them while nobody attacks: about as long as the attackers'."""
IDLE_WITHIN_S = 30.0


@dataclass
class Honest:
    """A client with one stream, a token at a time. gaps_s: between consecutive chunks of its text."""

    client: openai.AsyncOpenAI
    number: int
    prompt: str | list[int] = ""
    text: str = ""
    gaps_s: list[float] = field(default_factory=list)
    is_answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self, is_over: asyncio.Event, num_characters: int | None = None) -> None:
        """Read a sampled answer until it is over, or has as many characters."""
        stream = await self.client.completions.create(
            model="demo",
            prompt=self.prompt or f"{self.number}. The lantern in the hall is",
            max_tokens=ANSWER_TOKENS,
            temperature=0.9,
            seed=self.number,
            logit_bias={str(END_ID): -100},
            stream=True,
            # With drafts a step brings many tokens, and may take as long as they would have taken.
            extra_body={"draft": {"type": "none"}},
        )
        async with stream:
            last_at = None
            async for chunk in stream:
                assert chunk.choices[0].finish_reason is None, "the answer ended early"
                self.text += chunk.choices[0].text
                now = perf_counter()
                if last_at is not None:
                    self.gaps_s.append(now - last_at)
                last_at = now
                self.is_answered.set()
                if is_over.is_set() or (num_characters is not None and len(self.text) >= num_characters):
                    return
            raise AssertionError("the stream ended")


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_hostile_requests_change_no_text_and_starve_no_stream(tmp_path: Path) -> None:
    # Rows for all kinds, so that those with long prompts do not keep the others in the queue.
    with serving(tmp_path, "--max-rows", str(MAX_ROWS)) as (url, printed):
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600
        ) as client:
            calm = await _stay_calm(client)
            async with _listening([Honest(client, number) for number in range(NUM_HONEST)]) as honest:
                outcome = await _attack(url)
            await _wait_until_idle(url)
            calm_again = await _stay_calm(client)
            # The machine may have got slower meanwhile, for whatever else it does.
            step_s, gap_s = max(_p99(calm), _p99(calm_again)), _p99(honest)
            _report(outcome, calm, honest, calm_again)
            for one in honest:
                alone = Honest(client, one.number)
                await alone.listen(asyncio.Event(), len(one.text))
                assert one.text
                assert alone.text.startswith(one.text)
    assert outcome["faults"] == []
    assert not [line for line in printed if "Traceback" in line or " ERROR " in line]
    assert gap_s <= step_s + MAX_STALL_MS / 1000


def _report(outcome: dict[str, list[str]], *groups: Sequence[Honest]) -> None:
    print(json.dumps(outcome, indent=1))
    for name, group in zip(("before", "attacked", "after"), groups, strict=True):
        gaps = [(gap_s, 1.0) for one in group for gap_s in one.gaps_s]
        p50, p99, longest = (1000 * percentile(gaps, share) for share in (0.5, 0.99, 1.0))
        print(f"{name}: {len(gaps)} gaps, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms")
    print(f"load {os.getloadavg()[0]:.1f}")


async def _stay_calm(client: openai.AsyncOpenAI) -> list[Honest]:
    """Return honest clients after a time in which other honest ones had the other rows, with long texts."""
    text = [300 + number % 3700 for number in range(LONG_TOKENS)]
    # The first one computes the prefix that all of them share.
    await Honest(client, NUM_HONEST, text).listen(asyncio.Event(), num_characters=1)
    neighbors = [Honest(client, number, text) for number in range(NUM_HONEST, MAX_ROWS)]
    async with (
        _listening(neighbors),
        _listening([Honest(client, number) for number in range(NUM_HONEST)]) as honest,
    ):
        await asyncio.sleep(CALM_S)
    return honest


@asynccontextmanager
async def _listening(honest: list[Honest]) -> AsyncIterator[list[Honest]]:
    """Start honest streams; they have their first text when this is entered, and end with it."""
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as listening:
        for one in honest:
            listening.create_task(one.listen(is_over))
        try:
            for one in honest:
                await one.is_answered.wait()
            yield honest
        finally:
            is_over.set()


async def _attack(url: str) -> dict[str, list[str]]:
    """Attack from another process, so that what the attackers compute does not hold up the honest clients."""
    command = [sys.executable, "-m", "tests.end_to_end.trouble.attacks", url, str(ATTACK_S)]
    attackers = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        out, _ = await attackers.communicate()
    finally:
        if attackers.returncode is None:
            attackers.kill()
    assert attackers.returncode == 0
    outcome: dict[str, list[str]] = json.loads(out)
    return outcome


async def _wait_until_idle(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http, asyncio.timeout(IDLE_WITHIN_S):
        while True:
            health = (await http.get("/health")).json()
            if health["running"] == health["waiting"] == 0:
                return
            await asyncio.sleep(0.1)


def _p99(clients: Sequence[Honest]) -> float:
    return percentile([(gap_s, 1.0) for one in clients for gap_s in one.gaps_s], 0.99)
