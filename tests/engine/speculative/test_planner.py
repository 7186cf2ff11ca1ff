"""Plans that are computed quickly are those that the plain formulas give, over any history."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.config.settings import Settings
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.engine.kv_cache.exact_widths import Exactness
from reprise.engine.speculative import planner
from reprise.engine.speculative.acceptance import MODEL
from reprise.engine.speculative.costs.cost_table import USUAL, Conditions
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import MIN_GAIN, DraftEstimate
from reprise.engine.speculative.draft_model.forecast import DraftModelCosts, PlannedDraft
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, Proposers
from reprise.engine.speculative.verify import Outcome, RowInput
from tests.drafters.fakes import scored

ROWS, WIDTHS = (1, 2, 4), (1, 2, 3, 5, 9)
LINE_ENDS = frozenset({3, 7})
MAX_TOKENS = 60
EXACT = frozenset((rows, width) for rows in (1, 2, 3, 4) for width in (2, 3, 4, 6, 8, 9, 12))


class RandomDrafts:
    """A drafter with random drafts of any bucket, or none."""

    name = "suffix"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def open(self, start: SequenceStart) -> None:
        pass

    def propose(self, query: DraftQuery) -> Draft:
        tokens = [self.rng.randrange(12) for _ in range(self.rng.randint(0, query.limit))]
        bucket = self.rng.randrange(4)
        return Draft(tokens, self.name, bucket, (0.2, 0.6, 0.9, 0.97)[bucket]) if tokens else NO_DRAFT

    def observe(self, *_: Any) -> None:
        pass

    def note_verified(self, *_: Any) -> None:
        pass

    def close(self, *_: Any) -> None:
        pass


class PlainCosts(StepCosts):
    """Costs that are computed at every call."""

    def even_steps(self, num_rows: int, under: Conditions = USUAL) -> Callable[[int], float]:
        def step_s(width: int) -> float:
            self._forget_estimates()
            return StepCosts.even_steps(self, num_rows, under)(width)

        return step_s

    def least_plain_s(self, num_rows: int, under: Conditions = USUAL) -> float | None:
        self._forget_estimates()
        return super().least_plain_s(num_rows, under)


class PlainPlannedDraft(PlannedDraft):
    """The draft model's work, from all rows at once."""

    @classmethod
    def combine(cls, wanted: Any) -> PlannedDraft:
        found = [(forecast, estimate, num) for forecast, estimate, num in wanted if num]
        return PlannedDraft(
            max((forecast.num_fed for forecast, _, _ in found), default=0),
            max((forecast.num_to_draft(num) for forecast, _, num in found), default=0),
            max((forecast.catch_up_share(e.expected[num]) for forecast, e, num in found), default=0.0),
        )

    @classmethod
    def of_row(cls, *one: Any) -> PlannedDraft:
        return cls.combine([one])


def choose_plainly(
    estimates: list[DraftEstimate],
    widths: Iterable[int],
    step_s: Callable[[int], float],
    is_allowed: Callable[[int], bool] = lambda _: True,
) -> int:
    best, best_speed = 1, MIN_GAIN * len(estimates) / step_s(1)
    for width in widths:
        num_tokens = sum(e.expected[min(width - 1, e.num_tokens)] for e in estimates)
        speed = num_tokens / step_s(width)
        if speed > best_speed and is_allowed(width):
            best, best_speed = width, speed
    return best


class PlainPlanner(Planner):
    """A planner that looks at every row for every width, and remembers nothing."""

    def _choose(self, members: Any, estimates: Any) -> int:
        under = self.conditions(members)

        def step_s(width: int) -> float:
            wanted = [
                (row.drafts.forecast, e, min(width - 1, e.num_tokens))
                for row, e in zip(members, estimates, strict=True)
                if e.draft.source == MODEL
            ]
            work = PlainPlannedDraft.combine(wanted)
            drafting_s = self.model_costs.spread_s(len(members), work, under) if self.model_costs else 0.0
            widths = [1 + min(width - 1, e.num_tokens) for e in estimates]
            return drafting_s + self.costs.step_s(widths, under)

        widths = self.widths.candidates(estimates, len(members))
        return choose_plainly(estimates, widths, step_s, lambda w: self._is_allowed(members, estimates, w))

    def plan(self, members: Any) -> list[RowInput]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "choose_width", choose_plainly)
            patch.setattr(planner, "pays", lambda one, *by_width: choose_plainly([one], *by_width) > 1)
            patch.setattr(planner, "PlannedDraft", PlainPlannedDraft)
            return super().plan(members)


class World:
    """Rows that decode with one planner. Two worlds with the same seed differ in their planners only."""

    def __init__(
        self, make: type[Planner], costs: StepCosts, seed: int, num_rows: int, has_model: bool, **ways: Any
    ) -> None:
        self.costs = costs
        alone = StepCosts({(rows, 1): 0.1 * costs.seconds(rows, 1) for rows in ROWS})
        self.model_costs = DraftModelCosts(alone, costs) if has_model else None
        self.planner = make(costs, model_costs=self.model_costs, **ways)
        chosen = Settings(num_draft_tokens=15, draft_model="any" if has_model else None, gate="off")
        sources = DraftSources({"suffix": RandomDrafts(seed)}, scored(1.0))
        proposers = Proposers(sources, chosen, MODEL if has_model else None, line_ends=LINE_ENDS)
        self.rows: list[Any] = []
        for i in range(num_rows):
            asked = GenerationRequest(f"{i}", (1, 2, 3), MAX_TOKENS, Sampling(0))
            drafts = proposers.begin(asked)
            drafts.forecast.begin()
            row = SimpleNamespace(tokens=[1, 2, 3], num_answered=0, request=asked, sampling=0, drafts=drafts)
            self.rows.append(row)

    def plan(self) -> list[RowInput]:
        return self.planner.plan(self.rows)

    def end(self, inputs: list[RowInput], rng: random.Random) -> None:
        """Commit some tokens to every row, and learn from how long the step took."""
        width = max((row_input.width + row_input.num_wanted for row_input in inputs), default=1)
        taken_s = self.costs.seconds(len(self.rows), width) * rng.uniform(0.7, 1.4)
        committed = []
        for at, row in enumerate(self.rows):
            draft = list(inputs[at].draft) or [9] * inputs[at].num_wanted if inputs else []
            said = [*draft[: rng.randint(0, len(draft))], rng.randrange(12)]
            verified = Draft(draft, inputs[at].source.source, 0, 0.7) if draft else NO_DRAFT
            row.drafts.observe(said, verified, len(draft))
            if inputs:
                committed.append(Outcome(replace(inputs[at], draft=draft), said, [], 0))
            row.tokens += said
            row.num_answered += len(said)
        budgets, under = [row.drafts.slowdown_budget for row in self.rows], self.planner.conditions(self.rows)
        if inputs:
            self.planner.charge_verification(budgets, under, committed, taken_s)
        else:
            is_steady = rng.random() < 0.8
            self.planner.charge_plain(budgets, under, taken_s, is_steady, not is_steady)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    num_rows=st.integers(1, 5),
    per_width=st.sampled_from([0.0, 0.02, 0.1, 0.8, 4.0]),
    has_model=st.booleans(),
    batched=st.booleans(),
    exact=st.sampled_from([None, EXACT]),
)
def test_plans_equal_those_of_the_plain_formulas(
    seed: int,
    num_rows: int,
    per_width: float,
    has_model: bool,
    batched: bool,
    exact: frozenset[tuple[int, int]] | None,
) -> None:
    table = {(r, w): 0.01 * (1 + 0.05 * r + per_width * w) for r in ROWS for w in WIDTHS}
    ways = {"exact": exact and Exactness(dict.fromkeys(exact, ()))}
    quick = World(Planner, StepCosts(table, batched), seed, num_rows, has_model, **ways)
    plain = World(PlainPlanner, PlainCosts(table, batched), seed, num_rows, has_model, **ways)
    rng = random.Random(seed)
    for _ in range(12):
        inputs = quick.plan()
        assert inputs == plain.plan()
        outcome = rng.random()
        for world in (quick, plain):
            world.end(inputs, random.Random(outcome))


def test_the_history_has_every_kind_of_plan() -> None:
    """Check that lookups, the draft model and plain steps all occur, or the test above would show little."""
    kinds: set[str] = set()
    for seed in range(20):
        per_width = (0.1, 4.0)[seed % 2]
        table = {(r, w): 0.01 * (1 + 0.05 * r + per_width * w) for r in ROWS for w in WIDTHS}
        world = World(Planner, StepCosts(table), seed, 2, True)
        rng = random.Random(seed)
        for _ in range(12):
            inputs = world.plan()
            kinds |= {row_input.source.source for row_input in inputs} if inputs else {"plain step"}
            world.end(inputs, rng)
    assert {"plain step", "suffix", "draft-model"} <= kinds
