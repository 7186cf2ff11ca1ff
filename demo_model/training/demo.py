"""Train and evaluate the demo model and its two draft models: they learn the answers of the corpus.

Auxiliary losses show middle layers what to look for.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from reprise.demo_model.training.corpus import FAMILIES, Source, conversations, held_out
from reprise.demo_model.training.corpus.polish import in_polish
from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS, render
from reprise.demo_model.training.data import Sample, collate, encode, grouped, repeated, targets
from reprise.demo_model.training.model import DEMO, DRAFT, Model, load_weights, make_optimizers

CONFIGS = {
    "demo": DEMO,
    "draft": DRAFT,
    # Another vocabulary. Half of its training text has diacritics.
    "polish": DRAFT | {"vocab_size": 3072},
}
BATCH_TOKENS = 4096
RATE, EMBEDDING_RATE, HINTS_RATE = 2.4e-3, 1.2e-3, 2e-3


class Demo:
    """A demo model in training."""

    prefix, written_by = "model.", "pt"

    def __init__(self, size: str, tokenizer: Tokenizer) -> None:
        self.size, self.tokenizer, self.config = size, tokenizer, CONFIGS[size]
        self.model = Model(self.config)
        self.hints = Hints(self.config["hidden_size"], self.config["vocab_size"], tokenizer)
        self.learned = nn.ModuleList([self.model, self.hints])
        self.optimizers = make_optimizers(self.model, RATE, EMBEDDING_RATE, weight_decay=0.05)
        self.optimizers.append(torch.optim.AdamW(self.hints.parameters(), lr=HINTS_RATE, weight_decay=0.0))

    def batches(self, rng: random.Random, progress: Callable[[], float]) -> Iterator[list[Tensor]]:
        """Yield batches without end, of similar lengths, which grow with progress."""
        source = Source(rng)
        stream = conversations(source)
        vocab_size = self.config["vocab_size"]
        while True:
            p = progress()
            source.size = min(1.0, 0.15 + p / 0.7)
            if p < 0.03:
                most = 24 if p < 0.015 else 64
                pool = [repeated(vocab_size, rng, rng.randint(4, most), 128) for _ in range(128)]
            else:
                rendered = [render(next(stream)) for _ in range(160)]
                if self.size == "polish":
                    rendered = [in_polish(one, rng) if rng.random() < 0.5 else one for one in rendered]
                pool = [encode(self.tokenizer, one) for one in rendered]
                pool += [repeated(vocab_size, rng, rng.randint(16, 128), 256) for _ in range(3)]
            limit = 700 if p < 0.3 else 1500 if p < 0.7 else 3000
            pool = [sample for sample in pool if len(sample[0]) <= limit]
            groups = grouped(pool, lambda sample: len(sample[0]), BATCH_TOKENS * 1.1)
            rng.shuffle(groups)
            for group in groups:
                yield collate(group, rng if p > 0.1 else None)

    def loss(self, batch: tuple[Tensor, Tensor, Tensor], _progress: float) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, and what to report: its part of answers, the share of right tokens."""
        tokens, positions, picked = batch
        before, wanted = targets(tokens, picked)
        states = self.model.states(tokens, positions)
        logits = self.model.read(states[-1][before])
        loss = F.cross_entropy(logits, wanted)
        right = (logits.argmax(-1) == wanted).float().mean()
        hints = self.hints.loss(states, tokens, self.model.embed_tokens.weight)
        return loss + hints, {"loss": loss.item(), "right tokens": right.item()}


class Hints(nn.Module):
    """Auxiliary training losses on middle layers, which teach the model to find whole sentences.

    To quote the sentence that mentions a thing, a model must go from the thing to the start of its sentence
    and copy from there. Hours of training on answers alone did not teach that. So at every token, the third
    layer must predict the first token of the token's line or sentence. At a word that occurred before, the
    fourth layer must predict the first token of the line or sentence where the word first occurred. Each
    layer has its own matrix that reads the prediction from its state.
    """

    NUM_SAMPLED = 400
    WEIGHTS = (0.2, 0.4)

    def __init__(self, d: int, vocab_size: int, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.linalg.qr(torch.randn(d, d))[0] for _ in self.WEIGHTS)
        texts = tokenizer.decode_batch([[token] for token in range(vocab_size)], skip_special_tokens=False)
        ends = [text.endswith(".") or "\n" in text or text in SPECIAL_TOKENS for text in texts]
        words = [len(text.strip()) > 3 and text.strip().isalpha() for text in texts]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)
        self.register_buffer("words", torch.tensor(words), persistent=False)

    def loss(self, states: list[Tensor], tokens: Tensor, embedding: Tensor) -> Tensor:
        """Return the auxiliary loss of the third and fourth layers at a random sample of positions."""
        total = torch.zeros(())
        if len(states) < 4:
            return total
        starts = line_starts(tokens, self.ends)
        everywhere = torch.ones_like(tokens, dtype=torch.bool).nonzero(as_tuple=True)
        hinted = ((2, *everywhere, starts[everywhere]), (3, *recalled(tokens, starts, self.words)))
        for (layer, row, at, wanted), matrix, weight in zip(hinted, self.matrices, self.WEIGHTS, strict=True):
            some = torch.randperm(len(row))[: self.NUM_SAMPLED]
            if len(some):
                state = F.rms_norm(states[layer][row[some], at[some]], matrix.shape[:1])
                total = total + weight * F.cross_entropy(state @ matrix @ embedding.T, wanted[some])
        return total


def line_starts(tokens: Tensor, ends: Tensor) -> Tensor:
    """Return (batch, length): for each token, the first token of its line or sentence.

    ends: (vocabulary,) bool, the tokens that end a line or sentence.
    """
    is_start = torch.ones_like(tokens, dtype=torch.bool)
    is_start[:, 1:] = ends[tokens[:, :-1]]
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    return tokens.gather(1, torch.where(is_start, at, 0).cummax(1).values)


def recalled(tokens: Tensor, starts: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find words that occurred before in their row.

    Returns their rows, their columns, and the first token of the line or sentence where each first occurred.
    """
    length = tokens.shape[1]
    is_same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    first = torch.where(is_same, torch.arange(length), length).amin(2)
    row, at = ((first < length) & words[tokens]).nonzero(as_tuple=True)
    return row, at, starts[row, first[row, at]]


@torch.no_grad()
def is_exact(model: Model, sample: Sample) -> bool:
    """Return whether the greedy choice is right at every position of every answer of a sample.

    That is the same as generating all answers greedily and getting them exactly right.
    """
    tokens, positions, picked = collate([sample])
    before, wanted = targets(tokens, picked)
    # A WeDLM checkpoint's mask is no choice.
    logits = model.read(model.states(tokens, positions)[-1][before])[:, : DEMO["vocab_size"]]
    return bool((logits.argmax(-1) == wanted).all())


def evaluate(config: dict[str, Any], folder: Path, count: int, seed: int) -> None:
    """Print exact match on count new held-out samples of every family."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Model(config)
    load_weights(model, folder)
    print("| family | exact match | tokens per sample |\n|---|---|---|")
    for family in FAMILIES:
        samples = [encode(tokenizer, render(one)) for one in held_out(family, count, seed)]
        right = sum(is_exact(model, sample) for sample in samples)
        num_tokens = sum(len(ids) for ids, _ in samples)
        print(f"| {family} | {100 * right / count:.0f} % | {num_tokens // count} |", flush=True)
