"""Make trials: chats decoded in an arm, compared with plain runs of the same chat before and after it.

Also the arms' drafts with a chosen acceptance rate, and step costs that make the engine verify every draft.
"""

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from bench.decode.answering import PLAIN, Answering, Arm, Case, add_nested
from bench.experiment import Row
from bench.statistics import ratio
from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from engine.speculative.costs.step_costs import StepCosts

CONTROLLED = "controlled"
MIN_TOKENS = 8
"""Shorter answers are left out: their times are dominated by measurement noise."""


def forced_costs(max_drafted: int) -> StepCosts:
    """Return costs under which the longest draft is always the best choice.

    A step of width w seems to cost 1/w of a plain step. Then even rejected drafts pay, the slowdown budget is
    never exceeded, and a draft model's own steps cost next to nothing.
    """
    table = {(1, width): 1000.0 / width for width in range(1, max_drafted + 2)}
    return StepCosts(table, is_learned=False)


def acceptance(chance: float, num_drafted: int) -> float:
    """Return the expected share of accepted tokens if each drafted token is right with this chance.

    Tokens after a wrong one count as rejected.
    """
    return sum(chance**place for place in range(1, num_drafted + 1)) / num_drafted


def chance_for(share: float, num_drafted: int) -> float:
    """Return the chance that gives this acceptance, to a thousandth: the inverse of acceptance()."""
    chances = [step / 1000 for step in range(1001)]
    return chances[bisect_left(chances, share, key=lambda chance: acceptance(chance, num_drafted))]


class ControlledDrafter:
    """Knows the answer from the request's prediction, and drafts each token correctly with a given chance.

    chance: may be set between requests. vocab_size: wrong tokens are below it.
    Which tokens are right depends on the answer alone. Sequences without a prediction get no drafts.
    """

    name = CONTROLLED

    def __init__(self, vocab_size: int) -> None:
        self.chance = 1.0
        self.vocab_size = vocab_size
        self._drafts: dict[int, list[int]] = {}

    def open(self, start: SequenceStart) -> None:
        """Decide for each token of the answer whether it will be drafted correctly."""
        rng = random.Random(repr(tuple(start.prediction)))
        wrong = (rng.random() >= self.chance for _ in start.prediction)
        tokens = zip(start.prediction, wrong, strict=True)
        self._drafts[start.seq] = [(token + is_wrong) % self.vocab_size for token, is_wrong in tokens]

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the next tokens of the answer, some of them changed to wrong ones."""
        tokens = self._drafts[query.seq][: query.limit]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Advance past committed tokens."""
        del self._drafts[seq][: len(tokens)]

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the sequence."""
        del self._drafts[seq]


def make_trials(
    answering: Answering,
    cases: Mapping[str, Case],
    groups: Sequence[Sequence[Arm]],
    stage: str,
    **own: object,
) -> list[Row]:
    """Run each case in each arm, with a plain run before and after each group of arms; return the trials.

    Cases are named by the number of their chat. own: fields of all these trials.
    """
    arms = {"plain 0": PLAIN}
    for at, group in enumerate(groups, 1):
        arms |= {f"{number} of {at}": arm for number, arm in enumerate(group)} | {f"plain {at}": PLAIN}
    runs = defaultdict[tuple[str, str], list[Row]](list)
    for row in answering.compare(arms, cases, 1, stage):
        runs[row["case"], row["arm"]].append(row)
    return [
        {"chat": int(case), **trial, **own}
        for case in cases
        for at, group in enumerate(groups, 1)
        for number in range(len(group))
        for trial in _trial(
            runs[case, f"{number} of {at}"], runs[case, f"plain {at - 1}"], runs[case, f"plain {at}"]
        )
    ]


def with_predictions(answering: Answering, cases: Mapping[str, Case]) -> Iterator[tuple[str, Case]]:
    """Yield the first measured turn of each case, with its plain answer as the prediction."""
    for name, case in cases.items():
        chat = case.chats[0]
        turns = tuple(turn for turn in chat.turns if turn.is_measured)[:1]
        rows = answering.run(case := Case((replace(chat, turns=turns),)), PLAIN) if turns else []
        if rows and len(rows[0]["tokens"][0]) >= MIN_TOKENS:
            yield name, replace(case, prediction=tuple(rows[0]["tokens"][0]))


def _trial(run: Sequence[Row], *plain: Sequence[Row]) -> Iterator[Row]:
    """Yield the trial of a run, whose rows are its turns, unless the answers are too short.

    widths: number of steps by drafted tokens. plain_tps: over both plain runs together. joules: of the whole
    requests, prefill included; plain_joules: mean of the plain runs.
    """
    answers = [[token for row in some for token in row["tokens"][0]] for some in (run, *plain)]
    if min(map(len, answers)) < MIN_TOKENS:
        return
    names = ("decode_s", "num_forwards", "num_drafted", "num_accepted", "drafter_s")
    decode_s, forwards, drafted, accepted, drafter_s = (sum(row[name] for row in run) for name in names)
    tokens = len(answers[0])
    plain_tps = sum(map(len, answers[1:])) / sum(row["decode_s"] for some in plain for row in some)
    is_metered = all(row["energy_j"] is not None for some in (run, *plain) for row in some)
    joules = [sum(row["energy_j"] or 0.0 for row in some) for some in (run, *plain)]
    # by_position[i] counts drafts longer than i; differences give the number of drafts of each length.
    at_least = [forwards, *(count for count, _ in add_nested(run)[1]), 0]
    yield {
        **{name: run[0][name] for name in ("workload", "draft_type", "num_draft_tokens")}, "is_gated": False,
        "tokens": tokens, "decode_tps": tokens / decode_s, "plain_tps": plain_tps,
        "speedup": tokens / decode_s / plain_tps, "acceptance": ratio(accepted, drafted),
        "drafted": drafted, "accepted": accepted, "forwards": forwards, "drafter_s": drafter_s,
        "parity": "PASS" if all(one == answers[0] for one in answers) else "FAIL",
        "widths": [here - beyond for here, beyond in pairwise(at_least)],
        "joules": joules[0] if is_metered else None, "plain_joules": mean(joules[1:]) if is_metered else None,
    }  # fmt: skip
