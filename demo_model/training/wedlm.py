"""Train the bundled WeDLM checkpoint from the demo model, and evaluate it.

The demo model gets a mask token, and learns to predict masked windows behind the visible text (WeDLM,
arXiv:2512.22737) while its predictions of the next token stay near the demo model's, its teacher.
`train.py --size wedlm` calls this module.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from reprise.demo_model.training.corpus import FAMILIES, Source, conversations
from reprise.demo_model.training.corpus.rendering import render
from reprise.demo_model.training.llama import Model, load_weights, save_whole
from reprise.demo_model.training.muon import Muon, descend
from reprise.demo_model.training.samples import Sample, collate, encode, grouped
from reprise.demo_model.training.sizes import CONFIG, ROOT
from reprise.demo_model.training.train import export as export_model

MASK = 4096
WEDLM_CONFIG = {
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
MOST_TOKENS = 1000
MOST_COPIED = 600
BATCH_TOKENS = 2048
PEAK_RATE, EMBEDDING_RATE = 1.2e-3, 6e-4
# Weights of what keeps the next token: divergence from the teacher's prediction, distance of the last state.
KEEP_START, KEEP_END, STATE_WEIGHT = 3.0, 15.0, 0.2


@dataclass
class Sequence:
    """A conversation, then copies of windows of its answers in which masks hide tokens.

    tokens, positions: ids and positions. group: 0 for the conversation, another number for each copy.
    rank: the place in attention order within the group. limit: number of conversation tokens that it sees.
    wanted, weight: a mask's hidden token and its weight in the loss, 0 for all other tokens.
    """

    tokens: list[int]
    positions: list[int]
    group: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    limit: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        length = len(self.tokens)
        self.group, self.rank = [0] * length, list(range(length))
        self.limit = list(range(1, length + 1))
        self.wanted, self.weight = [0] * length, [0.0] * length
        self.num_groups = 0

    def add_window(self, start: int, hidden: list[bool], decay: float) -> None:
        """Append a copy of the tokens from start on; hidden says which of them become masks.

        Filled tokens see the conversation before the window and each other, masks see all of these and the
        masks to their left.
        """
        self.num_groups += 1
        num_filled = len(hidden) - sum(hidden)
        filled = masks = 0
        for at, is_hidden in enumerate(hidden, start):
            self.tokens.append(MASK if is_hidden else self.tokens[at])
            self.positions.append(self.positions[at])
            self.group.append(self.num_groups)
            self.limit.append(start)
            self.rank.append(num_filled + masks if is_hidden else filled)
            self.wanted.append(self.tokens[at])
            self.weight.append(decay**masks if is_hidden else 0.0)
            masks, filled = masks + is_hidden, filled + (not is_hidden)


@dataclass
class Batch:
    """Sequences stacked and padded: the fields of Sequence as (rows, length), seen for Block.forward.

    before: (rows, length) bool, conversation tokens whose next token is part of an answer.
    """

    tokens: Tensor
    positions: Tensor
    wanted: Tensor
    weight: Tensor
    seen: Tensor
    before: Tensor
    num_plain: int


def stack(sequences: list[Sequence], answers: list[list[bool]]) -> Batch:
    """Pad sequences on the right and stack them. Padding sees only the first token."""
    length = max(len(s.tokens) for s in sequences)

    def column(name: str, fill: float) -> Tensor:
        return torch.tensor([getattr(s, name) + [fill] * (length - len(s.tokens)) for s in sequences])

    group, rank, limit = column("group", -1), column("rank", 0), column("limit", 1)
    in_limit = (group == 0)[:, None, :] & (torch.arange(length) < limit[:, :, None])
    in_group = (group[:, :, None] == group[:, None, :]) & (rank[:, None, :] <= rank[:, :, None])
    before = torch.zeros(len(sequences), length, dtype=torch.bool)
    for row, answer in enumerate(answers):
        before[row, : len(answer) - 1] = torch.tensor(answer[1:])
    return Batch(
        column("tokens", 0), column("positions", 0), column("wanted", 0), column("weight", 0.0),
        (in_limit | (in_group & (group > 0)[:, :, None]) | torch.eye(length, dtype=torch.bool))[:, None],
        before, max(map(len, answers)),
    )  # fmt: skip


def spans(answer: list[bool]) -> list[tuple[int, int]]:
    """Return the (start, end) of each run of answer tokens."""
    edges = [at for at in range(1, len(answer)) if answer[at] != answer[at - 1]]
    edges += [len(answer)] if len(edges) % 2 else []
    return list(zip(edges[::2], edges[1::2], strict=True))


def masked(sample: Sample, rng: random.Random, progress: float) -> Sequence:
    """Make a sequence of a sample: random tilings of each answer by windows, most of them wholly masked."""
    ids, answer = sample
    _, positions, _ = collate([sample], rng, progress)
    sequence = Sequence(list(ids), positions[0].tolist())
    windows = []
    for start, end in spans(answer):
        for _ in range(NUM_TILINGS):
            width = rng.choice(WINDOW_SIZES)
            edges = [start, *range(start + rng.randint(1, width), end, width), end]
            windows += pairwise(edges)
    rng.shuffle(windows)
    for start, end in windows:
        if len(sequence.tokens) - len(ids) > MOST_COPIED:
            break
        share = 1.0 if rng.random() < WHOLLY_MASKED else rng.random()
        hidden = [rng.random() < share for _ in range(start, end)]
        if any(hidden):
            sequence.add_window(start, hidden, WEIGHT_DECAY if all(hidden) else 1.0)
    return sequence


def training_batches(tokenizer: Tokenizer, rng: random.Random) -> Iterator[Batch]:
    """Yield batches without end. Half of the samples are of the demo model's mix, half of any family."""
    source = Source(rng)
    mix, makers = conversations(source), [make for make, _ in FAMILIES.values()]
    while True:
        talks = [next(mix) if rng.random() < 0.5 else rng.choice(makers)(source) for _ in range(120)]
        samples = [
            encoded for talk in talks if len((encoded := encode(tokenizer, render(talk)))[0]) <= MOST_TOKENS
        ]
        pool = [(masked(sample, rng, 1.0), sample[1]) for sample in samples]
        groups = grouped(pool, lambda pair: len(pair[0].tokens), BATCH_TOKENS * 1.1)
        rng.shuffle(groups)
        for group in groups:
            yield stack([s for s, _ in group], [a for _, a in group])


def start(folder: Path) -> tuple[Model, Model]:
    """Return the demo model with a mask token, embedded as the others' mean, and the teacher."""
    CONFIG.update(vocab_size=MASK)
    teacher = Model()
    load_weights(teacher, folder)
    CONFIG.update(WEDLM_CONFIG)
    model = Model()
    state = teacher.state_dict()
    rows = state["embed_tokens.weight"]
    model.load_state_dict(state | {"embed_tokens.weight": torch.cat((rows, rows.mean(0, keepdim=True)))})
    return model, teacher.eval().requires_grad_(False)


class Training:
    """A training run: the model, the demo model as its teacher, the optimizers and the time spent."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.checkpoint: Path = arguments.work / "checkpoint.pt"
        self.model, self.teacher = start(ROOT / "demo_model")
        matrices = [p for p in self.model.layers.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if not any(p is m for m in matrices)]
        self.optimizers = [
            (
                torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
                EMBEDDING_RATE,
            ),
            (Muon(matrices, lr=PEAK_RATE, weight_decay=0.0, dtype=torch.bfloat16), PEAK_RATE),
        ]
        self.seconds, self.step = 0.0, 0
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            for (optimizer, _), saved in zip(self.optimizers, state.get("optimizers", ()), strict=False):
                optimizer.load_state_dict(saved)
            self.seconds, self.step = state["seconds"], state["step"]

    @property
    def progress(self) -> float:
        """The share of the training time that has passed."""
        return min(1.0, self.seconds / 60 / self.arguments.minutes)

    def update(self, batch: Batch) -> tuple[float, float, float, float]:
        """Train on one batch. Return the losses of masks, next tokens and states, and right masks."""
        plain, before = batch.num_plain, batch.before
        with torch.autocast("cpu", torch.bfloat16):
            state = self.model.states(batch.tokens, batch.positions, batch.seen)[-1]
            with torch.no_grad():
                tokens = batch.tokens[:, :plain].clamp(max=MASK - 1)
                known = self.teacher.states(tokens, batch.positions[:, :plain])[-1]
        state, known = state.float(), known[before[:, :plain]].float()
        hidden = batch.weight > 0
        logits, weight = self.model.read(state[hidden]), batch.weight[hidden]
        each = F.cross_entropy(logits, batch.wanted[hidden], reduction="none")
        of_masks = (each * weight).sum() / weight.sum()
        with torch.no_grad():
            wanted = F.log_softmax(self.teacher.read(known), -1)
        own = F.log_softmax(self.model.read(state[before]), -1)[:, :MASK]
        of_next = (wanted.exp() * (wanted - own)).sum(-1).mean()
        known = self.teacher.norm(known)
        of_state = F.mse_loss(self.model.norm(state[before]), known) / known.var()
        keep = KEEP_START + (KEEP_END - KEEP_START) * self.progress
        (of_masks + keep * of_next + STATE_WEIGHT * of_state).backward()
        rate = min(1.0, (self.step + 1) / 50) * max(0.01, 1.0 - self.progress)
        descend(self.model, self.optimizers, rate)
        self.step += 1
        right = (logits.argmax(-1) == batch.wanted[hidden]).float().mean()
        return of_masks.item(), of_next.item(), of_state.item(), right.item()

    def save(self) -> None:
        """Write the weights."""
        state = {"model": self.model.state_dict(), "optimizers": [o.state_dict() for o, _ in self.optimizers]}
        save_whole({**state, "seconds": self.seconds, "step": self.step}, self.checkpoint)


def train(arguments: argparse.Namespace) -> None:
    """Train or resume for the given minutes in one process, print progress, and save often."""
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = Tokenizer.from_file(str(ROOT / "demo_model" / "tokenizer.json"))
    training = Training(arguments)
    stream = training_batches(tokenizer, random.Random(f"{arguments.seed} {training.step}"))
    seen: list[tuple[float, ...]] = []
    last = time.monotonic()
    while training.progress < 1.0:
        seen.append(training.update(next(stream)))
        now = time.monotonic()
        training.seconds += min(now - last, 15.0)
        last = now
        if training.step % 20 == 0:
            masks, following, state, right = (sum(column) / len(seen) for column in zip(*seen, strict=True))
            print(
                f"minute {training.seconds / 60:.1f}, step {training.step}: masks {masks:.3f}, "
                f"next {following:.4f}, state {state:.4f}, right masks {right:.3f}",
                flush=True,
            )
            seen = []
        if training.step % 50 == 0:
            training.save()
    training.save()


def export(work: Path, out: Path) -> None:
    """Write the checkpoint as a model folder; the tokenizer is the demo model's with the mask token."""
    tokenizer = Tokenizer.from_file(str(ROOT / "demo_model" / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|mask|>"])
    tokenizer.save(str(work / "tokenizer.json"))
    CONFIG.update(WEDLM_CONFIG)
    export_model(work, out)


def run(arguments: argparse.Namespace) -> None:
    """Evaluate, or train and export, as the command line of train.py says."""
    if arguments.evaluate:
        import_module("demo_model.training.masks").evaluate(arguments.out, arguments.count, seed=2_000_000)
        return
    if not arguments.export:
        arguments.work.mkdir(parents=True, exist_ok=True)
        train(arguments)
    export(arguments.work, arguments.out)
