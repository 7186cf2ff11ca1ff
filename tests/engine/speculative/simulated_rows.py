"""Rows that decode by the planner's decisions on a simulated device, whose steps take known times."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from reprise.config.settings import Settings
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_model.forecast import DraftModelCosts, DraftWork, ShareOfTarget
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, Proposers
from reprise.engine.speculative.verify import Outcome
from tests.drafters.fakes import scored

TrueCosts = Callable[[int, int, int], float]
"""(rows, width, tokens of the longest row) -> seconds of a step."""

UNSTEADY = 1.15
"""A plain step after another kind of step, relative to one that was dispatched ahead."""

WIDEST = 32

HEAD_TOKENS = 4
"""Maximum tokens that a head drafts."""


class ChanceDrafter:
    """Drafts a token of the answer correctly with the row's chance, and says that it is sure.

    chances: (rows,) the chance by a row's number. limit: maximum tokens of a draft.
    """

    name = "suffix"

    def __init__(self, chances: Sequence[float], seed: int, limit: int = WIDEST) -> None:
        self.chances, self.limit, self.rng = list(chances), limit, random.Random(seed)
        self.num_said: dict[int, int] = {}

    def open(self, start: SequenceStart) -> None:
        self.num_said[start.seq] = 0

    def propose(self, query: DraftQuery) -> Draft:
        if (chance := self.chances[query.seq % len(self.chances)]) < 0:
            return NO_DRAFT
        at, num = self.num_said[query.seq], min(query.limit, self.limit)
        tokens = [token_at(i) if self.rng.random() < chance else 0 for i in range(at, at + num)]
        return Draft(tokens, self.name, 0, 0.97)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        self.num_said[seq] += len(tokens)

    def note_verified(self, *_: Any) -> None:
        pass

    def close(self, seq: int) -> None:
        pass


def token_at(index: int) -> int:
    """Return the token of every answer at an index."""
    return 1 + index % 7


@dataclass
class Spent:
    """What a row's decoding took so far, and what plain decoding would have taken.

    worst_steps: the maximum, over all moments, beyond (1 + overhead) T_plain, in plain steps:
        the dearest so far.

    """

    overhead: float
    spent_s: float = 0.0
    plain_s: float = 0.0
    dearest_s: float = 0.0
    worst_steps: float = 0.0
    num_plain: int = 0
    num_wide: int = 0

    def add(self, step_s: float, plain_s: float, num_tokens: int) -> None:
        self.spent_s += step_s
        self.plain_s += plain_s * num_tokens
        beyond = self.spent_s - (1 + self.overhead) * self.plain_s
        self.dearest_s = max(self.dearest_s, plain_s)
        self.worst_steps = max(self.worst_steps, beyond / self.dearest_s)


@dataclass
class Device:
    """Rows on a device with true costs, decoded by a planner that believes others.

    limit: tokens of each answer; a row leaves when it has them, and a new one joins.
    mask_chances: by a row's number, the chance that a mask predicts its token; the model is always sure.
    head_chances: by a row's number, the chance that a head drafts a token that is right.
    head_share, believed_head_share: a token that it drafts, as a share of a plain step.
    """

    true_s: TrueCosts
    believed: StepCosts
    chances: Sequence[float]
    prompt_tokens: int = 64
    limit: int = 400
    seed: int = 0
    overhead: float = 0.02
    noise: float = 0.0
    mask_chances: Sequence[float] = ()
    head_chances: Sequence[float] = ()
    head_share: float = 0.05
    believed_head_share: float = 0.05
    spent: list[Spent] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = Settings(num_draft_tokens=WIDEST - 1, gate="off")
        drafter = ChanceDrafter(self.chances, self.seed)
        sources, mask_token = DraftSources({"suffix": drafter}, scored(1.0)), 0 if self.mask_chances else None
        head = "mtp" if self.head_chances else None
        self.proposers = Proposers(sources, settings, head, mask_token_id=mask_token, max_drafted=HEAD_TOKENS)
        prior = ShareOfTarget(self.believed, self.believed_head_share)
        self.planner = Planner(
            self.believed, model_costs=DraftModelCosts(prior, self.believed) if head else None
        )
        self.rng = random.Random(self.seed)
        self.rows: list[Any] = []
        self.in_flight: list[Any] = []
        self.is_steady = self.was_plain = False
        # (answers begun before, width) of each verification step.
        self.widths_used: list[tuple[int, int]] = []

    def join(self) -> None:
        asked = GenerationRequest("r", (5,) * self.prompt_tokens, self.limit, Sampling(0, 0.0))
        row = SimpleNamespace(
            tokens=list(asked.prompt),
            num_answered=0,
            request=asked,
            sampling=0,
            drafts=self.proposers.begin(asked),
            spent=Spent(self.overhead),
        )
        row.drafts.forecast.begin()
        self.rows.append(row)
        self.spent.append(row.spent)

    def run(self, num_rows: int, num_answers: int) -> None:
        """Decode answers, num_rows at once, until num_answers have begun and ended."""
        while len(self.spent) < num_answers or self.rows:
            while len(self.rows) < num_rows and len(self.spent) < num_answers:
                self.join()
            self.step_and_drop()

    def step_and_drop(self) -> None:
        """Advance all rows; those whose answers have ended leave."""
        self.step()
        if any(row.num_answered >= row.request.max_tokens for row in self.rows):
            self.rows = [row for row in self.rows if row.num_answered < row.request.max_tokens]
            self.is_steady = False

    def step(self) -> None:
        """Advance all rows, as Worker does."""
        inputs = self.plan()
        if inputs and self.in_flight:
            self.read()
            self.rows = [row for row in self.rows if row.num_answered < row.request.max_tokens]
            inputs = self.plan() if self.rows else []
        if inputs:
            self.verify(inputs)
        elif self.rows:
            ahead, is_steady = self.in_flight, self.in_flight == self.rows
            if ahead:
                self.read()
            self.in_flight, self.is_steady = list(self.rows), is_steady

    def token(self, _row: Any, index: int) -> int:
        return token_at(index)

    def plan(self) -> Any:
        return self.planner.plan(self.rows)

    def read(self) -> None:
        rows, self.in_flight = self.in_flight, []
        plain_s = self.cost(rows, 1)
        taken_s = plain_s * (1.0 if self.is_steady else UNSTEADY)
        budgets = [row.drafts.slowdown_budget for row in rows]
        under = self.planner.conditions(rows)
        self.planner.charge_plain(budgets, under, taken_s, self.is_steady, not self.is_steady)
        for row in rows:
            row.spent.num_plain += 1
            self.commit(row, [self.token(row, row.num_answered)], taken_s, plain_s)

    def verify(self, inputs: Any) -> None:
        rows, plain_s = self.rows, self.cost(self.rows, 1)
        work = self.draft(rows, inputs)
        drafting_s = self.head_share * plain_s * work.num_drafted if work else 0.0
        widths = [one.width for one in inputs]
        self.widths_used.append((len(self.spent), max(widths)))
        taken_s = drafting_s + self.cost(rows, max(widths))
        outcomes = []
        for row, one in zip(rows, inputs, strict=True):
            says = [self.token(row, row.num_answered + at) for at in range(len(one.draft) + 1)]
            num = next((at for at, token in enumerate(one.draft) if token != says[at]), len(one.draft))
            outcomes.append(says[: num + 1])
            if one.mask_tokens and num == len(one.draft):
                self.predict(row, num, len(one.mask_tokens))
        self.planner.charge_verification(
            [row.drafts.slowdown_budget for row in rows],
            self.planner.conditions(rows),
            [Outcome(one, tokens, [], 0) for one, tokens in zip(inputs, outcomes, strict=True)],
            taken_s,
            drafting_s,
            work,
        )
        for row, one, outcome in zip(list(rows), inputs, outcomes, strict=True):
            row.spent.num_wide += 1
            self.commit(row, outcome, taken_s, plain_s, one.source, len(one.draft))

    def draft(self, rows: Sequence[Any], inputs: list[Any]) -> DraftWork | None:
        """Let the head draft for the inputs that want it, as HeadDrafter does for rows that lack nothing."""
        num = min(HEAD_TOKENS, max(one.num_to_draft for one in inputs))
        if not num:
            return None
        for at, (row, one) in enumerate(zip(rows, inputs, strict=True)):
            chance = self.head_chances[row.drafts.seq % len(self.head_chances)]
            says = [self.token(row, row.num_answered + place) for place in range(min(num, one.num_wanted))]
            draft = [token if self.rng.random() < chance else 0 for token in says]
            if draft:
                inputs[at] = replace(one, draft=draft, source=replace(one.source, tokens=draft))
        work = DraftWork(1, num, [1] * len(rows), [(num, num) if one.num_wanted else None for one in inputs])
        for at, row in enumerate(rows):
            row.drafts.forecast.note_work(work, at)
        return work

    def predict(self, row: Any, num_accepted: int, num_masks: int) -> None:
        chance = self.mask_chances[row.drafts.seq % len(self.mask_chances)]
        bonus_at = row.num_answered + num_accepted
        places = range(bonus_at, bonus_at + num_masks)
        predicted = [self.token(row, at) if self.rng.random() < chance else 0 for at in places]
        row.drafts.masks.receive(predicted, [0.0] * num_masks, predicted[0])

    def commit(
        self,
        row: Any,
        tokens: list[int],
        taken_s: float,
        plain_s: float,
        draft: Draft = NO_DRAFT,
        num: int = 0,
    ) -> None:
        row.spent.add(taken_s, plain_s, len(tokens))
        row.tokens += tokens
        row.num_answered += len(tokens)
        row.drafts.observe(tokens, draft, num)

    def cost(self, rows: Sequence[Any], width: int) -> float:
        longest = max(len(row.tokens) for row in rows)
        return self.true_s(len(rows), width, longest) * (1 + self.rng.uniform(-self.noise, self.noise))
