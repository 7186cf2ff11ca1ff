"""Measure what drafters cost in processor time, for drafters/README.md.

    .venv/bin/python scripts/drafter_costs.py

us/token: microseconds per emitted token; each step is as in the engine: propose up to 31 tokens, observe the
accepted ones and one more, note_verified. read: milliseconds for the prompt, which is also the prediction.
learn: milliseconds after the sequence ended. Both are done in slices; slice is the longest of them, or of the
calls that return them. score: the gate's repetition score. Prompts: copy, random text of which the answer
repeats stretches; random, prompt and answer random over 300 ids, so that many short matches are wrong; two
ids, even more so. Of three runs the lowest counts. -views: the prompt is also a view.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise, product
from random import Random

from reprise.drafters.base import Drafter, DraftQuery, IndexesViews, SequenceStart
from reprise.drafters.ngram_mod.drafter import NgramModDrafter
from reprise.drafters.ngram_mod.table import NgramModTables
from reprise.drafters.prediction import PredictionDrafter
from reprise.drafters.repetition import score_in_slices
from reprise.drafters.suffix import SuffixDrafter
from reprise.engine.speculative.acceptance import count_accepted

SCORE = "score"
CONTEXT_TOKENS = (1_000, 10_000, 100_000)
ANSWER_TOKENS, LIMIT, REPEATS = 2_000, 31, 3
NUM_IDS = {"copy": 50_000, "random": 300, "two ids": 2}
"""The kinds of prompts, and how many token ids each draws from."""


def _full_ngram_mod() -> NgramModDrafter:
    """Create a drafter whose small table is full of other text: lookups find a token, usually a wrong one."""
    tables = NgramModTables("bench", size=65_536)
    table = tables.table("")
    table.learn(Random(0).choices(range(50_000), k=20 * table.size))
    return NgramModDrafter(tables)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram-simple": lambda: SuffixDrafter(0, name="ngram-simple"),
    "ngram-mod": lambda: NgramModDrafter(NgramModTables("bench")),
    "ngram-mod-full": _full_ngram_mod,
    "suffix": SuffixDrafter,
    "suffix-views": SuffixDrafter,
    "prediction": PredictionDrafter,
}
"""The drafters to measure: name -> how to create one."""


def measure(drafter: str, prompt: str, tokens: int) -> dict[str, float]:
    """Measure a drafter with a kind of prompt; return the lowest value of each cost over several runs."""
    costs = [_costs(drafter, *_text(prompt, tokens)) for _ in range(REPEATS)]
    return {name: min(cost[name] for cost in costs) for name in costs[0]}


def _text(kind: str, num_tokens: int) -> tuple[list[int], list[int]]:
    """Return the token ids of a prompt, and of an answer of the same kind."""
    rng, ids = Random(num_tokens), range(NUM_IDS[kind])
    prompt = rng.choices(ids, k=num_tokens)
    if kind != "copy":
        return prompt, rng.choices(ids, k=ANSWER_TOKENS)
    starts = (rng.randrange(num_tokens - 200) for _ in range(ANSWER_TOKENS // 20))
    answer = [token for start in starts for token in prompt[start : start + rng.randint(20, 200)]]
    return prompt, answer[:ANSWER_TOKENS]


def _costs(name: str, prompt: list[int], answer: list[int]) -> dict[str, float]:
    if name == SCORE:
        read_ms = _time_slices(partial(score_in_slices, prompt))
        return {"us/token": 0.0, "read": sum(read_ms), "learn": 0.0, "slice": max(read_ms)}
    drafter = DRAFTERS[name]()
    read_ms = _time_slices(partial(drafter.open, SequenceStart(0, prompt, prompt)))
    if name.endswith("-views") and isinstance(drafter, IndexesViews):
        read_ms += _time_slices(partial(drafter.add_view, 0, prompt))
    start, at = time.thread_time(), 0
    while at < len(answer):
        draft = drafter.propose(DraftQuery(0, LIMIT)).tokens
        accepted = min(count_accepted(draft, answer[at : at + len(draft)]), len(answer) - at - 1)
        drafter.observe(0, answer[at : at + accepted + 1])
        if draft:
            drafter.note_verified(0, len(draft), accepted)
        at += accepted + 1
    token_us = (time.thread_time() - start) / len(answer) * 1e6
    learn_ms = _time_slices(partial(drafter.close, 0))
    slice_ms = max(*read_ms, *learn_ms)
    return {"us/token": token_us, "read": sum(read_ms), "learn": sum(learn_ms), "slice": slice_ms}


def _time_slices(begin: Callable[[], Iterator[int] | None]) -> list[float]:
    """Return the milliseconds of a call that returns slices, and of each of them."""
    times = [time.thread_time()]
    slices = begin() or iter(())
    times += (time.thread_time() for _ in chain((0,), slices, (0,)))
    return [(after - before) * 1e3 for before, after in pairwise(times)]


if __name__ == "__main__":
    for case in product((*DRAFTERS, SCORE), NUM_IDS, CONTEXT_TOKENS):
        costs = ", ".join(f"{name} {value:.2f}" for name, value in measure(*case).items())
        print(*case, costs, sep=", ", flush=True)
