"""Evaluate the bundled WeDLM checkpoint, with a greedy reference of both ways to decode with its masks."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reprise.demo_model.training.corpus import FAMILIES, held_out
from reprise.demo_model.training.corpus.rendering import render
from reprise.demo_model.training.llama import Model, Past, load_weights
from reprise.demo_model.training.samples import Sample, collate, encode, targets
from reprise.demo_model.training.sizes import CONFIG, ROOT
from reprise.demo_model.training.wedlm import MASK, WEDLM_CONFIG, Sequence, spans, stack

END = 2
COPYING = ("edit", "record look-up", "quote a sentence", "list or repeat a passage")


@dataclass(frozen=True)
class Confidence:
    """When a mask's token is taken: entropy + penalty x its distance from the first mask < threshold."""

    threshold: float
    penalty: float = 0.01

    def doubt(self, logits: Tensor, distances: Tensor) -> Tensor:
        """Return (masks,): entropy in nats, plus the penalty. Below the threshold, a mask is taken."""
        spread = logits.log_softmax(-1)
        return -(spread.exp() * spread).sum(-1) + self.penalty * distances


@dataclass
class Reader:
    """A model and the text whose keys and values it has; counts the forwards that answer and their tokens."""

    model: Model
    past: Past = field(default_factory=dict)
    length: int = 0
    num_forwards: int = 0
    num_fed: int = 0

    @torch.no_grad()
    def look(self, fed: list[int]) -> Tensor:
        """Return the logits (fed, MASK) of tokens behind the text. Masks are last in attention order."""
        is_mask = torch.tensor(fed) == MASK
        order = torch.arange(len(fed)) + len(fed) * is_mask
        seen = torch.ones(len(fed), self.length + len(fed), dtype=torch.bool)
        seen[:, self.length :] = order <= order[:, None]
        positions = torch.arange(self.length, self.length + len(fed))
        states = self.model.states(torch.tensor([fed]), positions[None], seen[None, None], self.past)
        self.num_forwards += 1
        self.num_fed += len(fed)
        return self.model.read(states[-1][0])[:, :MASK]

    def keep(self, count: int) -> None:
        """Keep the keys and values of the first count tokens that were fed last, and forget the others'."""
        self.length += count
        self.past.update(
            {k: (a[:, :, : self.length], b[:, :, : self.length]) for k, (a, b) in self.past.items()}
        )


def start(model: Model, prompt: list[int]) -> Reader:
    """Return a reader of all but the last token of a prompt."""
    reader = Reader(model)
    reader.look(prompt[:-1])
    reader.keep(len(prompt) - 1)
    reader.num_forwards = reader.num_fed = 0
    return reader


def lossless(
    model: Model, prompt: list[int], limit: int, window: int, confidence: Confidence
) -> tuple[list[int], Reader]:
    """Answer with drafts from masks behind the draft of the step before; a window of 0 drafts nothing.

    Every token is the choice of the causal head, so the answer is that of plain decoding.
    """
    reader, answer = start(model, prompt), [prompt[-1]]
    draft: list[int] = []
    while len(answer) <= limit and answer[-1] != END:
        logits = reader.look([answer[-1], *draft, *[MASK] * window])
        chosen = logits[: len(draft) + 1].argmax(-1).tolist()
        agreed = 0
        while agreed < len(draft) and draft[agreed] == chosen[agreed] != END:
            agreed += 1
        reader.keep(agreed + 1)
        answer += chosen[: agreed + 1]
        masks = logits[len(draft) + 1 :]
        is_whole, draft = agreed == len(draft), []
        if is_whole and window:
            is_sure = confidence.doubt(masks, torch.arange(window)) < confidence.threshold
            confident = is_sure[1:].int().cumprod(0).sum()
            draft = masks[1 : 1 + int(confident)].argmax(-1).tolist()
    return answer[1:], reader


def streaming(
    model: Model, prompt: list[int], limit: int, window: int, confidence: Confidence, anchor: bool
) -> tuple[list[int], Reader]:
    """Answer by filling a window of masks by confidence, at least one in every forward.

    With an anchor the causal head fills the leftmost mask.
    """
    reader, answer = start(model, prompt), [prompt[-1]]
    pending, filled = [prompt[-1]], [MASK] * window
    while len(answer) <= limit and END not in answer:
        logits = reader.look(pending + filled)
        reader.keep(len(pending))
        holes = torch.tensor([at for at, token in enumerate(filled) if token == MASK])
        scores = logits[len(pending) :][holes]
        doubt = confidence.doubt(scores, holes - holes[0])
        accepted = doubt < confidence.threshold
        if anchor:
            scores[0], accepted[0] = logits[len(pending) - 1], True
        elif not accepted.any():
            accepted[doubt.argmin()] = True
        for at, token, is_taken in zip(
            holes.tolist(), scores.argmax(-1).tolist(), accepted.tolist(), strict=True
        ):
            if is_taken:
                filled[at] = token
        settled = [*filled, MASK].index(MASK)
        answer += filled[:settled]
        pending, filled = filled[:settled], filled[settled:] + [MASK] * settled
    return answer[1 : [*answer, END].index(END) + 1], reader


def right_masks(model: Model, samples: list[Sample], width: int = 8) -> list[float]:
    """Return the share of right masks by distance from the visible text, in wholly masked windows."""
    right, count = torch.zeros(width), 0
    for ids, answer in samples:
        sequence = Sequence(list(ids), list(range(len(ids))))
        for first, end in spans(answer):
            for at in range(first, end - width + 1, width // 2):
                sequence.add_window(at, [True] * width, 1.0)
        if len(sequence.tokens) > len(ids):
            batch = stack([sequence], [answer])
            with torch.no_grad():
                state = model.states(batch.tokens, batch.positions, batch.seen)[-1][0, len(ids) :]
            found = model.read(state)[:, :MASK].argmax(-1) == batch.wanted[0, len(ids) :]
            right += found.view(-1, width).float().sum(0)
            count += len(found) // width
    return (right / max(1, count)).tolist()


def is_exact(model: Model, sample: Sample) -> bool:
    """Say whether the greedy choice is right at every position of every answer of a sample."""
    tokens, positions, picked = collate([sample], random.Random(0), 0.0)
    before, wanted = targets(tokens, picked)
    with torch.no_grad():
        return bool((model(tokens, positions, before)[:, :MASK].argmax(-1) == wanted).all())


@dataclass
class Tally:
    """Answers of one way to decode, on the samples of a family."""

    num_tokens: int = 0
    num_forwards: int = 0
    num_fed: int = 0
    num_equal: int = 0
    num_right: int = 0

    def add(self, answer: list[int], reader: Reader, plain: list[int], right: list[int]) -> None:
        """Count an answer against plain decoding's and the right one."""
        self.num_tokens += len(answer)
        self.num_forwards += reader.num_forwards
        self.num_fed += reader.num_fed
        self.num_equal += answer == plain
        self.num_right += answer == right

    def row(self, *names: str) -> str:
        """Return a row of the table."""
        speed = f"{self.num_tokens / self.num_forwards:.2f}", f"{self.num_fed / self.num_forwards:.1f}"
        return f"| {' | '.join((*names, *speed, str(self.num_equal), str(self.num_right)))} |"


def evaluate(folder: Path, count: int, seed: int) -> None:
    """Print exact match beside the demo model's, right masks by distance, and gains of each mode."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    CONFIG.update(vocab_size=MASK)
    before = Model()
    load_weights(before, ROOT / "demo_model")
    CONFIG.update(WEDLM_CONFIG)
    model = Model()
    load_weights(model, folder)
    samples = {
        family: [encode(tokenizer, render(one)) for one in held_out(family, count, seed)]
        for family in FAMILIES
    }
    print(
        f"| family | exact of {count} | demo_model | both or neither | right masks 0, 1, ... |\n|"
        + "---|" * 5
    )
    for family, some in samples.items():
        pairs = [(is_exact(model, sample), is_exact(before, sample)) for sample in some]
        counts = [sum(a for a, _ in pairs), sum(b for _, b in pairs), sum(a == b for a, b in pairs)]
        shares = " ".join(f"{share:.2f}" for share in right_masks(model, some[: max(1, count // 2)]))
        print(f"| {family} | {' | '.join(map(str, counts))} | {shares} |", flush=True)
    few = max(1, count // 5)
    print(f"\n| family | mode | tokens/forward | fed/forward | equal of {few} | right |\n|" + "---|" * 6)
    total: dict[str, Tally] = {}
    for family in COPYING:
        for mode, tally in compare(model, samples[family][:few]).items():
            print(tally.row(family, mode), flush=True)
            known = total.setdefault(mode, Tally())
            for name, value in vars(tally).items():
                setattr(known, name, getattr(known, name) + value)
    for mode, tally in total.items():
        print(tally.row("all", mode))


def compare(model: Model, samples: list[Sample]) -> dict[str, Tally]:
    """Return the tally of each mode on samples of one answer. Raises RuntimeError if drafts change one."""
    modes: dict[str, Tally] = {}
    for ids, answer in samples:
        ((at, end),) = spans(answer)
        prompt, right, limit = ids[:at], ids[at:end], end - at + 16
        plain, reader = lossless(model, prompt, limit, 0, Confidence(0.0))
        modes.setdefault("plain", Tally()).add(plain, reader, plain, right)
        for window, threshold in ((6, 1.0), (6, 2.5)):
            found, reader = lossless(model, prompt, limit, window, Confidence(threshold))
            if found != plain:
                raise RuntimeError(f"drafts changed an answer: {found}, not {plain}")
            modes.setdefault(f"lossless W {window} tau {threshold}", Tally()).add(found, reader, plain, right)
        for threshold, anchor in ((0.3, False), (0.6, False), (0.3, True)):
            found, reader = streaming(model, prompt, limit, 8, Confidence(threshold), anchor)
            name = f"streaming W 8 tau {threshold}" + anchor * ", anchor"
            modes.setdefault(name, Tally()).add(found, reader, plain, right)
    return modes
