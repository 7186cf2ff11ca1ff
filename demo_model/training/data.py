"""Turn the corpus into tokens: vocabularies, samples and batches."""

import json
import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, islice
from typing import TypeVar

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from reprise.bench.lexicon import (
    ADJECTIVES,
    FIELDS,
    IDENTIFIER_WORDS,
    NAMES,
    POLISH_ADJECTIVES,
    POLISH_NAMES,
    POLISH_NOUNS,
)
from reprise.demo_model.training.corpus import Source, conversations
from reprise.demo_model.training.corpus.polish import in_polish
from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS, render

# Words include a leading space, numbers are split into pairs of digits, line breaks include the indentation.
SPLIT = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# For the Polish vocabulary: single digits; line breaks include the indentation, signs a leading space.
POLISH_SPLIT = r"\n *|\p{N}| ?[^\s\p{L}\p{N}]+| ?\p{L}+|\s"

T = TypeVar("T")
Pieces = list[tuple[str, bool]]
# Token ids, and for each whether it is part of an answer.
Sample = tuple[list[int], list[bool]]


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on generated text. Extra text makes most words of the corpus single tokens."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    text = [joined(render(talk)) for talk in islice(conversations(Source(random.Random(0))), 3000)]
    for word in sorted({*IDENTIFIER_WORDS, *ADJECTIVES, *FIELDS, *NAMES}):
        text += [f"{word}\n {word}"] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def train_polish_tokenizer(vocab_size: int) -> Tokenizer:
    """Train a BPE in SentencePiece's style, of characters with byte fallback. Half of the text is in Polish.

    Spaces become marks. Encoding adds one at the start of the text, and decoding removes it again.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    split = pre_tokenizers.Split(Regex(POLISH_SPLIT), behavior="isolated")
    spaces = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spaces])
    unmark, strip = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([unmark, decoders.ByteFallback(), decoders.Fuse(), strip])
    rng = random.Random(0)
    rendered = [render(talk) for talk in islice(conversations(Source(rng)), 3000)]
    text = [joined(in_polish(one, rng) if at % 2 else one) for at, one in enumerate(rendered)]
    for word in (*POLISH_NOUNS, *POLISH_ADJECTIVES, *POLISH_NAMES):
        text += [f"{word}\n {word}\n{word.capitalize()}"] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=[chr(code) for code in range(32, 127)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    # The trainer accepts byte tokens only as special tokens, which decoding would skip.
    written = json.loads(tokenizer.to_str())
    added = written["added_tokens"]
    written["added_tokens"] = [token for token in added if token["content"] in SPECIAL_TOKENS]
    return Tokenizer.from_str(json.dumps(written))


def joined(pieces: Pieces) -> str:
    """Return the text of a rendered conversation."""
    return "".join(text for text, _ in pieces)


def encode(tokenizer: Tokenizer, pieces: Pieces) -> Sample:
    """Return a rendered conversation as tokens."""
    encoding = tokenizer.encode(joined(pieces), add_special_tokens=False)
    ends = list(accumulate(len(text) for text, _ in pieces))
    answer = [pieces[bisect_right(ends, start)][1] for start, _ in encoding.offsets]
    return encoding.ids, answer


def spans(answer: list[bool]) -> list[tuple[int, int]]:
    """Return the (start, end) of each run of answer tokens."""
    edges = [at for at in range(1, len(answer)) if answer[at] != answer[at - 1]]
    edges += [len(answer)] if len(edges) % 2 else []
    return list(zip(edges[::2], edges[1::2], strict=True))


def repeated(vocab_size: int, rng: random.Random, period: int, length: int) -> Sample:
    """Make a sample of random tokens that repeat with a period: the fastest way to teach copying."""
    ids = [rng.randrange(len(SPECIAL_TOKENS), vocab_size) for _ in range(period)]
    ids = (ids * (length // period + 1))[:length]
    return ids, [at >= period for at in range(length)]


def grouped(pool: list[T], length: Callable[[T], int], most_tokens: float) -> list[list[T]]:
    """Return groups of similar length, shortest first, of at most so many tokens when padded."""
    groups: list[list[T]] = [[]]
    for one in sorted(pool, key=length):
        if groups[-1] and (len(groups[-1]) + 1) * length(one) > most_tokens:
            groups.append([])
        groups[-1].append(one)
    return groups


def stretched(length: int, rng: random.Random) -> Tensor:
    """Return (length,) positions, half of the time with a jump at one point, which teaches long distances."""
    positions = torch.arange(length)
    if rng.random() < 0.5:
        positions += rng.randrange(2000)
        positions[rng.randrange(length) :] += rng.randrange(rng.choice((200, 1000, 4000)))
    return positions


def collate(group: list[Sample], rng: random.Random | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Pad samples on the right and stack them: tokens, positions, picked (tokens of answers, bool).

    rng: for positions with jumps; without it they count from 0.
    """
    length = max(len(ids) for ids, _ in group)
    tokens = torch.zeros(len(group), length, dtype=torch.long)
    picked = torch.zeros(len(group), length, dtype=torch.bool)
    for row, (ids, answer) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        picked[row, : len(ids)] = torch.tensor(answer)
    rows = [torch.arange(length) if rng is None else stretched(length, rng) for _ in group]
    return tokens, torch.stack(rows), picked


def targets(tokens: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mask of the positions whose next token is part of an answer, those next tokens)."""
    before = torch.zeros_like(picked)
    before[:, :-1] = picked[:, 1:]
    return before, tokens[picked]
