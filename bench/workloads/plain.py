"""Requests with nothing to copy, or where copying misleads."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.workloads.chats import Grow, Turn, Workload, single_turn
from bench.workloads.words import NAMES, NOUNS

NUM_SUMS, NUM_ENTRIES, NUM_WORDS = 8, 24, 48


def _story(rng: random.Random, _: Grow, **more: Any) -> Sequence[Turn]:
    return single_turn(f"Write about the {rng.choice(NOUNS)}.", is_endless=True, **more)


def _arithmetic(rng: random.Random, _: Grow) -> Sequence[Turn]:
    sums = [(rng.randrange(100, 1000), rng.choice("+-"), rng.randrange(10, 100)) for _ in range(NUM_SUMS)]
    answers = (left + right if sign == "+" else left - right for left, sign, right in sums)
    listed = "\n".join(f"{left} {sign} {right}" for left, sign, right in sums)
    request = "Compute each line. Answer with the results alone, one in each line."
    return single_turn(f"{request}\n\n{listed}", "\n".join(map(str, answers)))


def _remap(rng: random.Random, _: Grow) -> Sequence[Turn]:
    meaning = dict(zip(rng.sample(NOUNS, NUM_ENTRIES), rng.sample(NAMES, NUM_ENTRIES), strict=True))
    text = [rng.choice(list(meaning)) for _ in range(NUM_WORDS)]
    entries = "\n".join(f"{word}: {other}" for word, other in meaning.items())
    request = f"Translate the text word by word. These are the words:\n\n{entries}"
    return single_turn(f"{request}\n\nThe text: {' '.join(text)}", " ".join(meaning[word] for word in text))


WORKLOADS = (
    Workload("free", "random text at temperature 1.5, nothing to copy", partial(_story, temperature=1.5)),
    Workload("arithmetic", f"{NUM_SUMS} sums, whose results do not occur in the prompt", _arithmetic),
    Workload("remap", f"{NUM_WORDS} words translated one by one with a list of {NUM_ENTRIES}", _remap),
    Workload("trap", "random draws from 12 tokens: every short n-gram repeats, but predicts nothing",
             partial(_story, num_allowed=12)),
)  # fmt: skip
