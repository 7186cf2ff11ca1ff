"""Samples of the corpus as tokens, in batches."""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reprise.demo_model.training.corpus import Source, conversations
from reprise.demo_model.training.corpus.polish import in_polish
from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS, render
from reprise.demo_model.training.sizes import CONFIG, POLISH_CONFIG

BATCH_TOKENS = 2048


Sample = tuple[list[int], list[bool]]


def encode(tokenizer: Tokenizer, pieces: list[tuple[str, bool]]) -> Sample:
    """Return the token ids of a rendered conversation, and for each whether it is part of an answer."""
    encoding = tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False)
    ends = list(accumulate(len(text) for text, _ in pieces))
    answer = [pieces[bisect_right(ends, start)][1] for start, _ in encoding.offsets]
    return encoding.ids, answer


def repeated(rng: random.Random, period: int, length: int) -> Sample:
    """Make a sample of random tokens that repeat with a period: the fastest way to teach copying."""
    ids = [rng.randrange(len(SPECIAL_TOKENS), CONFIG["vocab_size"]) for _ in range(period)]
    ids = (ids * (length // period + 1))[:length]
    return ids, [at >= period for at in range(length)]


def batches(tokenizer: Tokenizer, rng: random.Random, progress: list[float]) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches (tokens, positions, picked) without end, of about BATCH_TOKENS each and similar lengths.

    progress: a list of one number in [0, 1] that the caller updates; samples get longer as it grows.
    """
    source = Source(rng)
    stream = conversations(source)
    while True:
        p = progress[0]
        source.size = min(1.0, 0.15 + p / 0.7)
        if p < 0.03:
            pool = [repeated(rng, rng.randint(4, 24 if p < 0.015 else 64), 128) for _ in range(128)]
        else:
            rendered = [render(next(stream)) for _ in range(160)]
            if CONFIG["vocab_size"] == POLISH_CONFIG["vocab_size"]:
                rendered = [in_polish(one, rng) if rng.random() < 0.5 else one for one in rendered]
            pool = [encode(tokenizer, one) for one in rendered]
            pool += [repeated(rng, rng.randint(16, 128), 256) for _ in range(3)]
        limit = 700 if p < 0.3 else 1500 if p < 0.7 else 3000
        groups = grouped([s for s in pool if len(s[0]) <= limit], lambda s: len(s[0]), BATCH_TOKENS * 1.1)
        rng.shuffle(groups)
        for group in groups:
            yield collate(group, rng, p)


T = TypeVar("T")


def grouped(pool: list[T], length: Callable[[T], int], most_tokens: float) -> list[list[T]]:
    """Return groups of similar length, shortest first, of at most so many tokens when padded."""
    groups: list[list[T]] = [[]]
    for one in sorted(pool, key=length):
        if groups[-1] and (len(groups[-1]) + 1) * length(one) > most_tokens:
            groups.append([])
        groups[-1].append(one)
    return groups


def collate(group: list[Sample], rng: random.Random, progress: float) -> tuple[Tensor, ...]:
    """Pad samples on the right and stack them into a batch.

    Later in training, half of the samples have positions that jump ahead at one point, so that the model also
    learns long distances.
    """
    length = max(len(ids) for ids, _ in group)
    tokens = torch.zeros(len(group), length, dtype=torch.long)
    picked = torch.zeros(len(group), length, dtype=torch.bool)
    positions = torch.arange(length).repeat(len(group), 1)
    for row, (ids, answer) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        picked[row, : len(ids)] = torch.tensor(answer)
        if progress > 0.1 and rng.random() < 0.5:
            positions[row] += rng.randrange(2000)
            positions[row, rng.randrange(length) :] += rng.randrange(rng.choice((200, 1000, 4000)))
    return tokens, positions, picked


def targets(tokens: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mask of the positions whose next token is part of an answer, those next tokens)."""
    before = torch.zeros_like(picked)
    before[:, :-1] = picked[:, 1:]
    return before, tokens[picked]
