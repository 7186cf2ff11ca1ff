"""Write the demo model's greedy answers and the states of its layers, from which drafting heads learn.

`train.py --size states` calls this module. The target never changes, so its forward passes are
made once, in bfloat16 as it is served, and every head trains from the same files.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reprise.demo_model.training.corpus import FAMILIES, Source, conversations
from reprise.demo_model.training.corpus.rendering import render
from reprise.demo_model.training.llama import Model, load_weights
from reprise.demo_model.training.samples import Sample, collate, encode, grouped, targets
from reprise.demo_model.training.sizes import ROOT

# Layers of the target whose outputs are kept, counted from 0. The last one's gives the state after the norm.
KEPT_LAYERS = (1, 2, 3, 4, 5)
LONG_FAMILY = "edit of 60 lines"
SHARE_OF_MIX = 0.3
MOST_TOKENS = 1000
BATCH_TOKENS = 2048
SHARD_SAMPLES = 480
# How often an answer is judged. The last time it is cut behind the first token that differs.
NUM_JUDGED = 4
END = 2


@dataclass
class Answered:
    """A conversation with the target's own answers.

    ids: (length,) tokens. picked: (length,) bool, tokens of answers, each the target's greedy choice.
    states: (length, layers * hidden) bfloat16, outputs of KEPT_LAYERS.
    """

    ids: Tensor
    picked: Tensor
    states: Tensor


def load_target(folder: Path) -> Model:
    """Load a model in bfloat16 as it is served; angles of rotary positions stay float32."""
    model = Model()
    load_weights(model, folder)
    inverse = model.inverse
    model = model.bfloat16().eval().requires_grad_(False)
    model.inverse = inverse
    return model


def samples(tokenizer: Tokenizer, rng: random.Random) -> Iterator[Sample]:
    """Yield samples without end: a share of the demo model's own mix, the rest of all families alike."""
    source = Source(rng)
    mix, makers = conversations(source), [make for name, (make, _) in FAMILIES.items() if name != LONG_FAMILY]
    while True:
        talk = next(mix) if rng.random() < SHARE_OF_MIX else rng.choice(makers)(source)
        sample = encode(tokenizer, render(talk))
        if len(sample[0]) <= MOST_TOKENS:
            yield sample


@torch.no_grad()
def answered(model: Model, group: list[Sample], num_judged: int = NUM_JUDGED) -> list[Answered]:
    """Return samples of similar length with the target's greedy answers in place of the right ones.

    Where the target chooses another token than the right answer, that token is put in its place and the rest
    is judged again, num_judged times in all. Then it is cut off behind the first such choice.
    """
    tokens, positions, picked = collate(group, random.Random(0), 0.0)
    lengths = [len(ids) for ids, _ in group]
    for left in reversed(range(num_judged)):
        states = model.states(tokens, positions)
        before, _ = targets(tokens, picked)
        choices = tokens.clone()
        choices[picked] = model.read(states[-1][before]).argmax(-1)
        differs = choices != tokens
        for row in differs.any(1).nonzero()[:, 0].tolist():
            at = int(differs[row].int().argmax())
            tokens[row, at] = choices[row, at]
            if tokens[row, at] == END or not left:
                lengths[row] = min(lengths[row], at + 1)
            picked[row, lengths[row] :] = False
        if not differs.any():
            break
    # Where an answer was cut, the last state is still that of the token that was replaced. No draft reads it.
    kept = torch.cat([states[layer] for layer in KEPT_LAYERS], -1)
    return [
        Answered(tokens[row, :length].clone(), picked[row, :length].clone(), kept[row, :length].clone())
        for row, length in enumerate(lengths)
    ]


def write(arguments: argparse.Namespace) -> None:
    """Write shards of answered samples into the work folder until there are as many samples as asked for."""
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(ROOT / "demo_model" / "tokenizer.json"))
    model = load_target(ROOT / "demo_model")
    for shard in range(-(-arguments.count // SHARD_SAMPLES)):
        path = arguments.work / f"states_{shard:03}.pt"
        if path.exists():
            continue
        stream = samples(tokenizer, random.Random(f"states {arguments.seed} {shard}"))
        pool = list(islice(stream, SHARD_SAMPLES))
        groups = grouped(pool, lambda sample: len(sample[0]), BATCH_TOKENS)
        made = [one for group in groups for one in answered(model, group)]
        new = path.with_suffix(".new")
        torch.save([vars(one) for one in made], new)
        new.replace(path)
        num_tokens = sum(len(one.ids) for one in made)
        num_picked = sum(int(one.picked.sum()) for one in made)
        print(f"{path.name}: {len(made)} samples, {num_tokens} tokens, {num_picked} of answers", flush=True)


def load(work: Path) -> list[Answered]:
    """Return the samples of all shards; states stay in the files until they are read.

    Raises FileNotFoundError if there are none.
    """
    paths = sorted(work.glob("states_*.pt"))
    if not paths:
        raise FileNotFoundError(f"no states in {work}: write them with --size states")
    shards = (torch.load(path, weights_only=True, mmap=True) for path in paths)
    return [Answered(**one) for shard in shards for one in shard]
