"""Chats and embeddings on one thread: both stay exact, nobody fails, and what the gaps of chats are.

.venv/bin/python -m pytest tests/end_to_end/trouble/test_mixed_load.py -m slow -s   a minute
.venv/bin/python -m pytest tests/end_to_end/trouble/test_mixed_load.py -m soak -s   an hour, and its figures
"""

import asyncio
import base64
import json
import random
import time
from collections import Counter
from itertools import pairwise

import httpx
import pytest

from reprise.bench.statistics import percentile
from tests.end_to_end.conftest import serving
from tests.engine.embedding.encoder_folders import minilm

NUM_CHATS, NUM_EMBEDDERS = 2, 2
PHASE_S = 5
CHAT = {"model": "demo", "temperature": 0, "max_tokens": 160, "stream": True}
TOPICS = ("a red lantern", "the lamp in the hall", "rain on the roof", "the sea")
WORDS = ("lantern", "rain", "roof", "harbour", "winter", "letter", "garden", "stone", "river", "clock")
PATIENCE_S = 600


class Load:
    """Chats all the time, and embeddings in every second phase.

    gaps: milliseconds between two pieces of a chat, by whether embeddings were asked for then.
    """

    def __init__(self, url):
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S)
        self.done, self.faults = Counter(), []
        self.gaps = {False: [], True: []}
        self.texts, self.vectors = {}, {}
        self._embeds, self._is_over = asyncio.Event(), False

    async def run(self, duration_s):
        chats = [asyncio.create_task(self._chats(random.Random(seed))) for seed in range(NUM_CHATS)]
        others = [asyncio.create_task(self._embeddings(random.Random(seed))) for seed in range(NUM_EMBEDDERS)]
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            await asyncio.sleep(PHASE_S)
            self._embeds.clear() if self._embeds.is_set() else self._embeds.set()
        self._is_over = True
        self._embeds.set()
        await asyncio.gather(*chats, *others)
        metrics = (await self.http.get("/metrics")).text
        await self.http.aclose()
        return metrics

    async def _chats(self, rng):
        while not self._is_over:
            topic, embeds = rng.choice(TOPICS), self._embeds.is_set()
            said, times = await self._chat(topic)
            self._expect(self.texts, topic, said)
            self.done["chat"] += 1
            # A chat that saw both belongs to neither.
            if embeds == self._embeds.is_set():
                self.gaps[embeds] += [1000 * (after - before) for before, after in pairwise(times)]

    async def _chat(self, topic):
        body = CHAT | {"messages": [{"role": "user", "content": f"Write about {topic}."}]}
        pieces, times = [], []
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith('data: {"') and (choices := json.loads(line[6:])["choices"]):
                    pieces.append(choices[0]["delta"].get("content") or "")
                    times.append(time.monotonic())
        return "".join(pieces), times

    async def _embeddings(self, rng):
        while not self._is_over:
            await self._embeds.wait()
            kind, size = rng.choice((("query", 1), ("batch", 32), ("many", 256), ("leaves", 2048)))
            texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 40))) for _ in range(size)]
            # A text that was embedded before, in another batch.
            texts[0] = f"The {rng.choice(WORDS)}."
            body = {"model": "model", "input": texts, "encoding_format": "base64"}
            patience_s = 0.2 if kind == "leaves" else PATIENCE_S
            try:
                response = await self.http.post("/v1/embeddings", json=body, timeout=patience_s)
            except httpx.TimeoutException:
                self.done["left"] += 1
                continue
            if response.status_code != 200:
                self.faults.append(response.text)
                continue
            found = [base64.b64decode(one["embedding"]) for one in response.json()["data"]]
            assert len(found) == size
            self._expect(self.vectors, texts[0], found[0])
            self.done[kind] += 1
            self.done["vectors"] += size

    def _expect(self, known, key, found):
        if known.setdefault(key, found) != found:
            self.faults.append(f"{key}: another answer than before")


@pytest.mark.parametrize(
    "duration_s",
    [
        pytest.param(30, id="a minute", marks=pytest.mark.slow),
        pytest.param(1200, id="twenty minutes", marks=pytest.mark.soak),
        pytest.param(3600, id="an hour", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(4500)
async def test_chats_and_embeddings_at_once_fail_nobody_and_change_nothing(duration_s, server_folder):
    flags = ("--model", "reprise-demo", "--embedding-model", str(minilm()))
    with serving(server_folder, *flags) as (url, printed):
        load = Load(url)
        metrics = await load.run(duration_s)
    for embeds, gaps in load.gaps.items():
        beside = "beside embeddings" if embeds else "alone"
        shares = (percentile([(gap, 1.0) for gap in gaps], share) for share in (0.5, 0.99, 1.0))
        figures = " / ".join(f"{one:.0f}" for one in shares)
        print(f"\nchats {beside}: {len(gaps)} gaps, ms p50 / p99 / longest {figures}", end="")
    print(f"\n{dict(load.done)}")
    assert load.faults == []
    assert load.done["chat"] > 2
    # How many depends on the machine.
    assert load.done["vectors"]
    assert load.done["left"]
    assert "\nreprise_embedding_waiting 0.0" in metrics
    assert not [line for line in printed if "Traceback" in line]
