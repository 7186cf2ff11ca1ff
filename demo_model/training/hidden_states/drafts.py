"""Evaluate the bundled MTP head and DFlash drafter on new held-out answers, beside look-ups in the text.

The target's answers do not depend on drafts, so all drafts are made in one pass over each answer. Decoding
is then counted step by step: a step brings the right tokens at the start of its draft, and one of the
target's own. `train.py --size mtp --evaluate` calls this module, for both.
"""

from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer

from reprise.demo_model.training.corpus import FAMILIES, held_out
from reprise.demo_model.training.corpus.rendering import render
from reprise.demo_model.training.hidden_states import heads
from reprise.demo_model.training.hidden_states.heads import Batch, Head
from reprise.demo_model.training.hidden_states.states import Answered, answered, load_target
from reprise.demo_model.training.llama import Model
from reprise.demo_model.training.samples import Sample, encode
from reprise.demo_model.training.sizes import ROOT
from reprise.demo_model.training.wedlm import spans

WIDTHS = {"mtp": heads.NUM_RECURSIONS, "dflash": heads.BLOCK_SIZE - 1}
# An answer ends behind this many tokens that are others than the right answer's.
NUM_JUDGED = 24
# Look-ups draft what stood behind the last place of these many tokens, the longest first.
LOOKUP_TOKENS = (4, 3, 2)
LOOKUP_WIDTH = 7
# Answers of families in which look-ups bring fewer tokens a forward are no copies of the prompt.
COPY_GAIN = 1.5


@dataclass
class Tally:
    """Decoding with one kind of drafts: answer tokens, forward passes, and right drafts by place."""

    num_tokens: int = 0
    num_forwards: int = 0
    num_right: list[int] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Answer tokens for each forward pass of the target."""
        return self.num_tokens / self.num_forwards

    def decode(self, rights: list[list[bool]]) -> None:
        """Count an answer. rights: of each token but the last, which drafts behind it are right."""
        at, length = 0, len(rights) + 1
        # The forward pass over the prompt's end brings the first token.
        self.num_forwards += 1
        while at < length - 1:
            at += [*rights[at], False].index(False) + 1
            self.num_forwards += 1
        self.num_tokens += length

    def judge(self, rights: list[list[bool]]) -> None:
        """Count the drafts of every token as right or wrong, by place."""
        for row in rights:
            for place, is_right in enumerate(row):
                if place == len(self.num_right):
                    self.num_right.append(0)
                    self.num_drafted.append(0)
                self.num_right[place] += is_right
                self.num_drafted[place] += 1


def answer(target: Model, sample: Sample) -> Answered:
    """Return a sample's first prompt with the target's own greedy answer and its states."""
    ids, picked = sample
    _, end = spans(picked)[0]
    (one,) = answered(target, [(ids[:end], picked[:end])], NUM_JUDGED)
    return one


@torch.no_grad()
def judge_drafts(head: Head, one: Answered, target: Model, width: int) -> list[list[bool]]:
    """Return which drafts behind each answer token but the last are the answer's own tokens."""
    batch = Batch([one], target)
    (anchors,) = one.picked[:-1].nonzero().T
    wanted, counts = batch.wanted(anchors[None], width)
    states = head(batch, target, anchors[None], width)
    drafted = (states @ target.embed_tokens.weight.T).argmax(-1)
    rights = ((drafted == wanted) & counts)[0].tolist()
    return [row[:num] for row, num in zip(rights, counts[0].sum(-1).tolist(), strict=True)]


def judge_lookups(one: Answered) -> list[list[bool]]:
    """Return the same of drafts that are copied from behind an earlier place of the last tokens."""
    ids, start = one.ids.tolist(), int(one.picked.int().argmax())
    rights = []
    for end in range(start + 1, len(ids)):
        found = next(filter(None, (_copied(ids[:end], size) for size in LOOKUP_TOKENS)), [])
        rights.append([a == b for a, b in zip(found, ids[end:], strict=False)])
    return rights


def _copied(ids: list[int], size: int) -> list[int]:
    """Return what stood behind the last earlier place of the last tokens; empty if they are new."""
    ending = ids[-size:]
    for at in range(len(ids) - size - 1, -1, -1):
        if ids[at : at + size] == ending:
            return ids[at + size : at + size + LOOKUP_WIDTH]
    return []


def evaluate(count: int, seed: int) -> None:
    """Print tokens a forward on count new held-out samples of each family, and right drafts by place."""
    torch.set_num_threads(1)
    folder = ROOT / "demo_model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    served, target = load_target(folder), heads.load_target()
    made = {name: heads.load(name, folder / name) for name in WIDTHS if (folder / name).is_dir()}
    names = ["look-up", *made]
    total = {kind: {name: Tally() for name in names} for kind in ("copies", "others", "all")}
    print(f"| family | tokens | {' | '.join(names)} |\n|" + "---|" * (len(names) + 2))
    for family in FAMILIES:
        tallies = {name: Tally() for name in names}
        judged: dict[str, list[list[list[bool]]]] = {name: [] for name in names}
        for conversation in held_out(family, count, seed):
            one = answer(served, encode(tokenizer, render(conversation)))
            judged["look-up"].append(judge_lookups(one))
            for name, head in made.items():
                judged[name].append(judge_drafts(head, one, target, WIDTHS[name]))
        for name, answers in judged.items():
            for rights in answers:
                tallies[name].decode(rights)
        kind = "copies" if tallies["look-up"].gain > COPY_GAIN else "others"
        for name, answers in judged.items():
            for rights in answers:
                for tally in (total[kind][name], total["all"][name]):
                    tally.decode(rights)
                    tally.judge(rights)
        print_row(f"{family} ({kind})", tallies)
    for kind, tallies in total.items():
        if tallies["look-up"].num_forwards:
            print_row(kind, tallies)
    for name, tally in total["others"].items():
        pairs = zip(tally.num_right, tally.num_drafted, strict=True)
        print(f"{name}, right by place in others: " + " ".join(f"{right / num:.2f}" for right, num in pairs))


def print_row(title: str, tallies: dict[str, Tally]) -> None:
    """Print a row of the table: tokens a sample drafts for, then tokens a forward of each kind of drafts."""
    num_tokens = tallies["look-up"].num_tokens
    print(f"| {title} | {num_tokens} | {' | '.join(f'{t.gain:.2f}' for t in tallies.values())} |", flush=True)
