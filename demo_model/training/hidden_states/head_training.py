"""Train what drafts from the demo model's states, as `train.py --size mtp` and `--size dflash` say."""

import argparse
import json
import random
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from reprise.demo_model.training.hidden_states.heads import (
    BLOCK_SIZE,
    DFLASH_CONFIG,
    MTP_CONFIG,
    NUM_RECURSIONS,
    Batch,
    load_target,
    make_head,
)
from reprise.demo_model.training.hidden_states.states import Answered, load, write
from reprise.demo_model.training.llama import Model, save_whole
from reprise.demo_model.training.muon import Muon, descend
from reprise.demo_model.training.samples import grouped

# The weight of each further token of an MTP draft relative to the one before it.
RECURSION_DECAY = 0.6
# A DFlash slot's weight is exp(-(slot - 1) / SLOT_DECAY).
SLOT_DECAY = 4.0
SHARE_OF_SHORT_BLOCKS = 0.2
MOST_ANCHORS = {"mtp": 48, "dflash": 24}
BATCH_TOKENS = 2500
# Batches of similar length are made from this many samples at a time.
POOL_SAMPLES = 200
PEAK_RATE, NORM_RATE = 2.4e-3, 1.5e-3


def batches(samples: list[Answered], rng: random.Random, target: Model) -> Iterator[Batch]:
    """Yield batches of samples of similar length without end."""
    while True:
        shuffled = rng.sample(samples, len(samples))
        for at in range(0, len(samples), POOL_SAMPLES):
            groups = grouped(shuffled[at : at + POOL_SAMPLES], lambda one: len(one.ids), BATCH_TOKENS)
            rng.shuffle(groups)
            for group in groups:
                yield Batch(group, target)


class Training:
    """A training run: the head, the target, the optimizers and the time spent."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.size = arguments, arguments.size
        self.checkpoint: Path = arguments.work / f"{self.size}.pt"
        self.target, self.head = load_target(), make_head(self.size)
        self.head.start_from(self.target)
        matrices = [p for p in self.head.parameters() if p.ndim == 2]
        norms = [p for p in self.head.parameters() if p.ndim == 1]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(norms, lr=NORM_RATE, betas=(0.9, 0.98), weight_decay=0.0), NORM_RATE),
            (Muon(matrices, lr=PEAK_RATE, weight_decay=0.01, dtype=torch.bfloat16), PEAK_RATE),
        ]
        self.seconds, self.step = 0.0, 0
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.head.load_state_dict(state["head"])
            for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.seconds, self.step = state["seconds"], state["step"]

    @property
    def progress(self) -> float:
        """The share of the training time that has passed."""
        return min(1.0, self.seconds / 60 / self.arguments.minutes)

    def update(self, batch: Batch) -> tuple[float, float]:
        """Train on one batch. Return the loss and the mean number of right drafts."""
        width = NUM_RECURSIONS
        if self.size == "dflash":
            is_short = random.random() < SHARE_OF_SHORT_BLOCKS
            width = random.randint(1, BLOCK_SIZE - 2) if is_short else BLOCK_SIZE - 1
        decay = RECURSION_DECAY if self.size == "mtp" else torch.tensor(-1 / SLOT_DECAY).exp()
        anchors = batch.anchors(MOST_ANCHORS[self.size])
        wanted, counts = batch.wanted(anchors, width)
        with torch.autocast("cpu", torch.bfloat16):
            states = self.head(batch, self.target, anchors, width)
            logits = states[counts] @ self.target.embed_tokens.weight.T
        logits = logits.float()
        weight = (decay ** torch.arange(width)).expand(counts.shape)[counts]
        each = F.cross_entropy(logits, wanted[counts], reduction="none")
        loss = (each * weight).sum() / weight.sum()
        loss.backward()
        rate = min(1.0, (self.step + 1) / 50) * max(0.01, 1.0 - self.progress)
        descend(self.head, self.optimizers, rate)
        self.step += 1
        is_right = torch.zeros_like(counts)
        is_right[counts] = logits.argmax(-1) == wanted[counts]
        return loss.item(), is_right.int().cumprod(-1).sum(-1)[counts.any(-1)].float().mean().item()

    def save(self) -> None:
        """Write the head and the optimizers."""
        state = {"head": self.head.state_dict(), "optimizers": [o.state_dict() for o, _ in self.optimizers]}
        save_whole({**state, "seconds": self.seconds, "step": self.step}, self.checkpoint)


def train(arguments: argparse.Namespace) -> None:
    """Train or resume for the given minutes of processor time in one process, print progress, save often."""
    torch.set_num_threads(1)
    training = Training(arguments)
    torch.manual_seed(arguments.seed + training.step)
    random.seed(arguments.seed + training.step)
    rng = random.Random(f"{arguments.seed} {training.step}")
    stream = batches(load(arguments.work), rng, training.target)
    seen: list[tuple[float, float]] = []
    last = time.process_time()
    while training.progress < 1.0:
        seen.append(training.update(next(stream)))
        now = time.process_time()
        training.seconds += now - last
        last = now
        if training.step % 50 == 0:
            loss, right = (sum(column) / len(seen) for column in zip(*seen, strict=True))
            print(
                f"minute {training.seconds / 60:.1f}, step {training.step}: loss {loss:.3f}, "
                f"right drafts {right:.3f}",
                flush=True,
            )
            seen = []
        if training.step % 100 == 0:
            training.save()
    training.save()


def export(size: str, work: Path, out: Path) -> None:
    """Write the checkpoint as a folder with a head: config.json, and weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    head = make_head(size)
    head.load_state_dict(torch.load(work / f"{size}.pt", weights_only=True)["head"])
    weights = {name: value.bfloat16().contiguous() for name, value in head.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "mlx"})
    config = MTP_CONFIG if size == "mtp" else DFLASH_CONFIG
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def run(arguments: argparse.Namespace) -> None:
    """Write states, evaluate, or train and export, as the command line of train.py says."""
    if arguments.size == "states":
        write(arguments)
        return
    if arguments.evaluate:
        import_module("demo_model.training.hidden_states.drafts").evaluate(arguments.count, seed=2_000_000)
        return
    if not arguments.export:
        train(arguments)
    export(arguments.size, arguments.work, arguments.out)
