"""Train the WeDLM checkpoint from the demo model.

The demo model gets a mask token, and learns to predict masked windows behind the visible text (WeDLM,
arXiv:2512.22737) while its predictions of the next token stay near the demo model's, its teacher.
"""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from reprise.demo_model.training.corpus import FAMILIES, Source, conversations
from reprise.demo_model.training.corpus.rendering import render
from reprise.demo_model.training.data import Sample, encode, grouped, spans, stretched
from reprise.demo_model.training.model import (
    BUNDLED,
    DEMO,
    Model,
    load_demo_model,
    make_optimizers,
)

END, MASK = 2, 4096
CONFIG = DEMO | {
    "architectures": ["WeDLMForCausalLM"],
    "model_type": "wedlm",
    "vocab_size": 4097,
    "attention_bias": False,
    "qk_norm": False,
    "mask_token_id": MASK,
}
WINDOW_SIZES = (4, 6, 8)
NUM_TILINGS = 2
WHOLLY_MASKED = 0.8
# In wholly masked windows, a mask's weight relative to the mask to its left.
WEIGHT_DECAY = 0.8
MOST_TOKENS, MOST_COPIED, BATCH_TOKENS = 1000, 600, 2048
RATE, EMBEDDING_RATE = 1.2e-3, 6e-4
# Weights of what keeps the next token: divergence from the teacher's prediction, distance of the last state.
KEEP_START, KEEP_END, STATE_WEIGHT = 3.0, 15.0, 0.2


class Token(NamedTuple):
    """A token of a conversation, or of a copy of a window of an answer in which masks hide tokens.

    group: 0 for the conversation, another number for each copy. rank: the place in attention order within
    the group. limit: number of conversation tokens that it sees. wanted, weight: a mask's hidden token and
    its weight in the loss, 0 for all other tokens.
    """

    id: int
    position: int
    group: int
    rank: int
    limit: int
    wanted: int = 0
    weight: float = 0.0


# Sees only the first token.
PADDING = Token(0, 0, group=-1, rank=0, limit=1)


def plain(ids: list[int], positions: list[int]) -> list[Token]:
    """Return the tokens of a conversation, each of which sees those up to itself."""
    pairs = zip(ids, positions, strict=True)
    return [Token(token, position, 0, at, at + 1) for at, (token, position) in enumerate(pairs)]


def window(shown: list[Token], start: int, hidden: list[bool], group: int, decay: float = 1.0) -> list[Token]:
    """Return a copy of a conversation's tokens from start on; hidden says which of them become masks.

    Filled tokens see the conversation before the window and each other, masks see all of these and the masks
    to their left.
    """
    num_filled = len(hidden) - sum(hidden)
    copies: list[Token] = []
    filled = masks = 0
    for token, is_hidden in zip(shown[start:], hidden, strict=False):
        if is_hidden:
            rank, weight = num_filled + masks, decay**masks
            copies.append(Token(MASK, token.position, group, rank, start, token.id, weight))
            masks += 1
        else:
            copies.append(Token(token.id, token.position, group, filled, start))
            filled += 1
    return copies


class Batch:
    """Sequences stacked and padded on the right: fields of Token as (rows, length), seen for Block.forward.

    before: (rows, plain length) bool, conversation tokens whose next token is part of an answer.
    """

    def __init__(self, sequences: list[list[Token]], answers: list[list[bool]]) -> None:
        length = max(map(len, sequences))
        table = torch.tensor([one + [PADDING] * (length - len(one)) for one in sequences])
        self.tokens, self.positions, group, rank, limit, self.wanted = table[..., :6].long().unbind(-1)
        self.weight = table[..., 6]
        in_limit = (group == 0)[:, None, :] & (torch.arange(length) < limit[:, :, None])
        in_group = (group[:, :, None] == group[:, None, :]) & (rank[:, None, :] <= rank[:, :, None])
        itself = torch.eye(length, dtype=torch.bool)
        self.seen = (in_limit | (in_group & (group > 0)[:, :, None]) | itself)[:, None]
        self.before = torch.zeros(len(answers), max(map(len, answers)), dtype=torch.bool)
        for row, answer in enumerate(answers):
            self.before[row, : len(answer) - 1] = torch.tensor(answer[1:])


def masked(sample: Sample, rng: random.Random) -> list[Token]:
    """Make a sequence of a sample: random tilings of each answer by windows, most of them wholly masked."""
    ids, answer = sample
    shown = plain(ids, stretched(len(ids), rng).tolist())
    windows: list[tuple[int, int]] = []
    for start, end in spans(answer):
        for _ in range(NUM_TILINGS):
            width = rng.choice(WINDOW_SIZES)
            windows += pairwise([start, *range(start + rng.randint(1, width), end, width), end])
    rng.shuffle(windows)
    copies: list[Token] = []
    for group, (start, end) in enumerate(windows, 1):
        if len(copies) > MOST_COPIED:
            break
        share = 1.0 if rng.random() < WHOLLY_MASKED else rng.random()
        hidden = [rng.random() < share for _ in range(start, end)]
        if any(hidden):
            copies += window(shown, start, hidden, group, WEIGHT_DECAY if all(hidden) else 1.0)
    return shown + copies


class Wedlm:
    """The WeDLM checkpoint in training: the demo model with a mask, embedded as the others' mean."""

    config, prefix, written_by = CONFIG, "model.", "pt"

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
        self.tokenizer.add_special_tokens(["<|mask|>"])
        self.teacher, self.model = load_demo_model(), Model(CONFIG)
        state = self.teacher.state_dict()
        rows = state["embed_tokens.weight"]
        state["embed_tokens.weight"] = torch.cat((rows, rows.mean(0, keepdim=True)))
        self.model.load_state_dict(state)
        self.learned = nn.ModuleList([self.model])
        self.optimizers = make_optimizers(self.model, RATE, EMBEDDING_RATE, weight_decay=0.0)

    def batches(self, rng: random.Random, _progress: Callable[[], float]) -> Iterator[Batch]:
        """Yield batches without end. Half of the samples are of the demo model's mix, half of any family."""
        source = Source(rng)
        mix, makers = conversations(source), [make for make, _ in FAMILIES.values()]
        while True:
            talks = [next(mix) if rng.random() < 0.5 else rng.choice(makers)(source) for _ in range(120)]
            samples = [encode(self.tokenizer, render(talk)) for talk in talks]
            pool = [(masked(one, rng), one[1]) for one in samples if len(one[0]) <= MOST_TOKENS]
            groups = grouped(pool, lambda pair: len(pair[0]), BATCH_TOKENS * 1.1)
            rng.shuffle(groups)
            for group in groups:
                yield Batch([tokens for tokens, _ in group], [answer for _, answer in group])

    def loss(self, batch: Batch, progress: float) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, and its parts: of masks, next tokens and states; right masks."""
        before, length = batch.before, batch.before.shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            state = self.model.states(batch.tokens, batch.positions, batch.seen)[-1]
            with torch.no_grad():
                # The padding of a short conversation may hold masks, which the teacher does not know.
                tokens = batch.tokens[:, :length].clamp(max=MASK - 1)
                known = self.teacher.states(tokens, batch.positions[:, :length])[-1]
        state, known = state.float(), known[before].float()
        hidden = batch.weight > 0
        logits, weight = self.model.read(state[hidden]), batch.weight[hidden]
        each = F.cross_entropy(logits, batch.wanted[hidden], reduction="none")
        of_masks = (each * weight).sum() / weight.sum()
        with torch.no_grad():
            wanted = F.log_softmax(self.teacher.read(known), -1)
        state = state[:, :length][before]
        own = F.log_softmax(self.model.read(state), -1)[:, :MASK]
        of_next = (wanted.exp() * (wanted - own)).sum(-1).mean()
        known = self.teacher.norm(known)
        of_state = F.mse_loss(self.model.norm(state), known) / known.var()
        keep = KEEP_START + (KEEP_END - KEEP_START) * progress
        right = (logits.argmax(-1) == batch.wanted[hidden]).float().mean()
        seen = {"masks": of_masks, "next": of_next, "state": of_state, "right masks": right}
        loss = of_masks + keep * of_next + STATE_WEIGHT * of_state
        return loss, {name: value.item() for name, value in seen.items()}
