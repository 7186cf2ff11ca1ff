"""Make trials: chats decoded in an arm, compared with plain runs of the same chat before and after it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Any

import numpy as np

from reprise.bench.decode.answering import PLAIN, Answering, Arm, Case, add_nested
from reprise.bench.experiment import Row, grouped
from reprise.bench.statistics import ratio
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from reprise.engine.speculative.costs.step_costs import StepCosts

CONTROLLED = "controlled"
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The acceptance rates that are aimed at; the analysis uses the measured ones."""

MIN_TOKENS = 8
"""Shorter answers are left out: their times are dominated by measurement noise."""


def forced_costs(max_drafted: int) -> StepCosts:
    """Return costs under which the longest draft is always the best choice.

    A step of width w seems to cost 1/w of a plain step. Then even rejected drafts pay, the slowdown budget is
    never exceeded, and a draft model's own steps cost next to nothing.
    """
    table = {(1, width): 1000.0 / width for width in range(1, max_drafted + 2)}
    return StepCosts(table, is_learned=False)


class ControlledDrafter:
    """Knows the answer from the request's prediction, and drafts each token correctly with a given chance.

    Which tokens are right depends on the answer alone. Sequences without a prediction get no drafts.
    """

    name = CONTROLLED

    def __init__(self) -> None:
        self.chance = 1.0
        self._drafts: dict[int, list[int]] = {}

    def aim(self, share: float, num_drafted: int) -> None:
        """Set the chance of a right token so that this share of drafted tokens is accepted at this length.

        Tokens after a wrong one count as rejected: the first n of a draft are accepted with chance ** n.
        """
        chances = np.linspace(0.0, 1.0, 1001)
        shares = np.mean([chances**place for place in range(1, num_drafted + 1)], axis=0)
        self.chance = float(np.interp(share, shares, chances))

    def open(self, start: SequenceStart) -> None:
        """Decide for each token of the answer whether it will be drafted correctly."""
        rng = random.Random(repr(tuple(start.prediction)))
        # Instead of a right token, the one before it in the vocabulary; instead of the first, the second.
        drafts = [abs(token - (rng.random() >= self.chance)) for token in start.prediction]
        self._drafts[start.seq] = drafts

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the next tokens of the answer, some of them changed to wrong ones."""
        tokens = self._drafts[query.seq][: query.limit]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Advance past committed tokens."""
        del self._drafts[seq][: len(tokens)]

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the sequence."""
        del self._drafts[seq]


def make_trials(
    local: Answering, cases: Mapping[str, Case], groups: Sequence[Sequence[Arm]], stage: str, **own: object
) -> list[Row]:
    """Run each case in each arm, with a plain run before and after each group of arms; return the trials.

    cases: by the number of their chat. own: fields to add to each trial.
    """
    arms = [PLAIN, *chain(*([*group, PLAIN] for group in groups))]
    named = {str(at): arm for at, arm in enumerate(arms)}
    runs = grouped(local.compare(named, cases, 1, stage), "case", "arm")
    plain = [at for at, arm in enumerate(arms) if arm is PLAIN]
    trials = []
    for case, (before, after) in product(cases, pairwise(plain)):
        for at in range(before + 1, after):
            found = [runs.get((case, str(one)), []) for one in (at, before, after)]
            if all(_sum("num_tokens", run) >= MIN_TOKENS for run in found):
                trials.append({"chat": int(case), **_trial(*found), **own})
    return trials


def _sum(name: str, *runs: Sequence[Row]) -> Any:
    values = [row[name] for run in runs for row in run]
    return None if None in values else sum(values)


def _trial(run: Sequence[Row], *plain: Sequence[Row]) -> Row:
    """Return the trial of a run, whose rows are its turns.

    plain_tps: over both plain runs together. drafts: the number of those that are at least 1, 2, ... tokens
    long. joules: of the whole requests, prefill included; plain_joules: mean of the plain runs.
    """
    names = ("num_tokens", "num_forwards", "num_drafted", "num_accepted", "drafter_s")
    tokens, forwards, drafted, accepted, drafter_s = (_sum(name, run) for name in names)
    decode_tps, plain_tps = (_sum("num_tokens", *some) / _sum("decode_s", *some) for some in ([run], plain))
    answer, *others = ([row["tokens"] for row in one] for one in (run, *plain))
    return {
        **{name: run[0][name] for name in ("workload", "draft_type", "num_draft_tokens")}, "is_gated": False,
        "tokens": tokens, "decode_tps": decode_tps, "plain_tps": plain_tps,
        "speedup": decode_tps / plain_tps, "acceptance": ratio(accepted, drafted),
        "drafted": drafted, "accepted": accepted, "forwards": forwards, "drafter_s": drafter_s,
        "parity": "PASS" if all(one == answer for one in others) else "FAIL",
        "drafts": [count for count, _ in add_nested(run)[1]],
        "joules": _sum("energy_j", run), "plain_joules": ratio(_sum("energy_j", *plain), len(plain)),
    }  # fmt: skip


def controlled_trials(
    local: Answering, cases: Mapping[str, Case], lengths: Sequence[int], stage: str
) -> list[Row]:
    """Make trials of each case's first measured turn, at each acceptance of LEVELS and each draft length."""
    # Only this drafter receives a request's prediction.
    local.drafters["prediction"] = oracle = ControlledDrafter()

    def arm(share: float, length: int) -> Arm:
        # Drafts come from the oracle alone: type draft-model uses no lookups.
        return Arm("draft-model", length, prepare=lambda _: oracle.aim(share, length))

    groups = [[arm(share, length) for share in LEVELS] for length in lengths]
    known = {}
    for name, case in cases.items():
        chat = case.chats[0]
        alone = Case((replace(chat, turns=tuple(turn for turn in chat.turns if turn.is_measured)[:1]),))
        for row in local.run(alone, PLAIN):
            known[name] = replace(alone, prediction=tuple(row["tokens"][0]))
    for group in groups if known else ():
        # The first step of a new shape may have to build kernels.
        local.run(next(iter(known.values())), group[-1])
    return make_trials(local, known, groups, stage, draft_type=CONTROLLED)
