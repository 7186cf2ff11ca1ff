"""Whether the next step is to be a wide one, and what each row takes into it."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from engine import sequence
from engine.speculative.draft_length import MIN_GAIN, DraftEstimate, choose_width
from engine.speculative.draft_model.costs import DraftModelCosts, DraftWork
from engine.speculative.draft_model.draft_length import (
    MODEL,
    PROBE_RATE,
    PROBE_TOKENS,
    DraftLength,
    PlannedDraft,
)
from engine.speculative.step_costs import StepCosts
from engine.speculative.verify import RowInput

MAX_PENDING = 16
"""A row with more pending tokens takes no draft until they are in its cache."""


STEADY_FED = 2
"""Most tokens that the draft model is fed before a draft if it drafts at every step; more is catching up."""

REFRESH_ASKS = 256
"""How often the cheapest wide step is looked up anew: costs are learned, slowly."""


class Planner:
    """Weighs what drafts promise against what steps cost.

    batched: whether all rows share a forward; otherwise each takes its own, and costs add up.
    exact_shapes: if given, the only (rows, width) beside width 1 that a forward may have.
    model_costs: what the draft model's part of a step costs, if there is one.
    replays: whether a row whose draft was rejected is fed once more what it kept, having recurrent state.
    """

    def __init__(
        self,
        costs: StepCosts,
        batched: bool,
        exact_shapes: Collection[tuple[int, int]] | None = None,
        model_costs: DraftModelCosts | None = None,
        replays: bool = False,
    ) -> None:
        self.costs = costs
        self.batched = batched
        self.exact_shapes = exact_shapes
        self.model_costs = model_costs
        self.replays = replays
        self.num_asked = 0
        self._min_ratios: dict[int, float] = {}

    def step_s(self, widths: Sequence[int]) -> float:
        """Expected seconds of a step whose rows have these widths."""
        if self.batched:
            return self.costs.seconds(len(widths), max(widths))
        return sum(self.costs.seconds(1, width) for width in widths)

    def plain_s(self, num_rows: int) -> float:
        """Expected seconds of a plain step."""
        return self.step_s([1] * num_rows)

    def model_s(self, num_rows: int, num_fed: int, num_drafted: int) -> float:
        """Expected seconds of the draft model's part of a step. See DraftCosts."""
        if self.model_costs is None or not num_fed:
            return 0.0
        return self.model_costs.seconds(num_rows, num_fed, num_drafted)

    def work_s(self, num_rows: int, work: DraftWork | None) -> float:
        """Expected seconds of what the draft model did."""
        return self.model_s(num_rows, work.num_fed, work.num_drafted) if work else 0.0

    @property
    def learns_work(self) -> bool:
        """Whether what the draft model really takes is learned."""
        return self.model_costs is not None and self.model_costs.is_learned

    def learn_work(self, num_rows: int, work: DraftWork, taken_s: float) -> None:
        """The draft model took so long for it."""
        if self.model_costs:
            self.model_costs.observe(num_rows, work.num_fed, work.num_drafted, taken_s)

    def plan(self, members: Sequence["sequence.Sequence"], lengths: Sequence[int]) -> list[RowInput]:
        """What a wide step over these rows would feed; empty where a plain step is the better one.

        lengths: (rows,) tokens in each row's cache. While a plain step is unread the plan is a forecast:
        the token that it will bring is missing.
        """
        estimates = []
        for s, length in zip(members, lengths, strict=True):
            num_pending = max(1, len(s.tokens) - length)
            try:
                estimates.append(self._ask(s, num_pending, len(members)))
            # Drafts are a bonus: the answer goes on.
            except Exception as fault:
                s.give_up_drafts(fault)
                estimates.append(DraftEstimate(num_pending=num_pending))
        # What pays for none of them if all were like it does not pay for all of them together.
        is_worth = any(o.is_worth or o.num_pending > 1 for o in estimates)
        width = self._choose(members, estimates) if is_worth else 1
        if width == 1 and all(o.num_pending == 1 for o in estimates):
            estimates, width = self._probe(members, estimates)
            if width == 1:
                return []
        return [_row_input(s, estimate, width) for s, estimate in zip(members, estimates, strict=True)]

    def model_pays(self, length: DraftLength, limit: int) -> bool:
        """Whether the draft model would be asked for drafts, of up to limit tokens, by a row of its own."""
        return self._estimate_model_draft(length, 1, limit, length.rate).num_tokens > 0

    def _ask(self, s: "sequence.Sequence", num_pending: int, num_rows: int) -> DraftEstimate:
        """A row's best draft, or the draft model's where no drafter has one that is worth its cost."""
        room = _room(s)
        if s.drafts is None or room < 1 or num_pending > MAX_PENDING:
            return DraftEstimate(num_pending=num_pending)

        def is_worth(estimate: DraftEstimate) -> bool:
            widths = self._widths([estimate], num_rows)
            return choose_width([estimate], widths, lambda w: self.step_s([w] * num_rows), lambda _: True) > 1

        estimate = s.drafts.propose(room, MIN_GAIN * self._min_ratio(num_rows), is_worth)
        if not estimate.is_worth and s.drafts.uses_model and self.model_costs is not None:
            length = s.drafts.length
            modelled = self._estimate_model_draft(length, num_rows, min(room, s.drafts.limit), length.rate)
            estimate = modelled if modelled.num_tokens else estimate
        return replace(estimate, num_pending=num_pending)

    def _estimate_model_draft(
        self, length: DraftLength, num_rows: int, limit: int, rate: float
    ) -> DraftEstimate:
        """A draft of the draft model's, as long as pays most if all rows are like this; none if none pays.

        rate: the chance that one of its tokens is right. limit: most tokens.
        """
        estimate = length.estimate(
            min(limit, self.model_costs.max_tokens(rate)) if self.model_costs else limit, rate
        )
        # Most fail already at this.
        if estimate.expected[-1] < MIN_GAIN * self._min_ratio(num_rows):
            return DraftEstimate()

        def step_s(width: int) -> float:
            work = PlannedDraft.combine([(length, estimate, width - 1)])
            return self._spread_s(num_rows, work) + self.step_s([width] * num_rows)

        width = choose_width([estimate], self._widths([estimate], num_rows), step_s, lambda _: True)
        return replace(estimate, expected=estimate.expected[:width])

    def _probe(
        self, members: Sequence["sequence.Sequence"], estimates: list[DraftEstimate]
    ) -> tuple[list[DraftEstimate], int]:
        """A short draft for rows that have gone without the draft model's for long, and the width for it.

        The offers as they are and width 1 where nobody tries, or where a ledger does not pay for it.
        """
        able = [s for s in members if s.drafts and s.drafts.uses_model and _room(s) > 0]
        due = [s.drafts.length for s in able if s.drafts and s.drafts.length.is_probe_due]
        if self.model_costs is None or not due:
            return estimates, 1
        num_rows = len(members)
        most = max(min(_room(s), s.drafts.limit) for s in able if s.drafts)
        if self.model_costs.is_new or any(
            self._estimate_model_draft(length, num_rows, most, PROBE_RATE).num_tokens for length in due
        ):
            # The step is taken by all, so all try.
            tried = [
                _probe_of(s) if s in able else estimate
                for s, estimate in zip(members, estimates, strict=True)
            ]
            widths = self._widths(tried, num_rows)
            if widths and self._is_allowed(members, tried, widths[-1]):
                return tried, widths[-1]
        else:
            self.model_costs.decay_to_prior()
        for length in due:
            length.postpone_probe()
        return estimates, 1

    def _min_ratio(self, num_rows: int) -> float:
        """The cost of the cheapest wide step over that of a plain one. Most drafts fail already at this."""
        found = self._min_ratios.get(num_rows)
        if found is None or self.num_asked % REFRESH_ASKS == 0:
            wide_s = [self.step_s([w] * num_rows) for w in self.costs.widths if w > 1]
            found = self._min_ratios[num_rows] = min(wide_s, default=0.0) / self.plain_s(num_rows)
        self.num_asked += 1
        return found

    def _choose(self, members: Sequence["sequence.Sequence"], estimates: Sequence[DraftEstimate]) -> int:
        def step_s(width: int) -> float:
            drafting_s = self._spread_s(len(members), _asked(members, estimates, width))
            return drafting_s + self.step_s([o.num_pending + _num_drafted(o, width) for o in estimates])

        return choose_width(
            estimates,
            self._widths(estimates, len(members)),
            step_s,
            lambda width: self._is_allowed(members, estimates, width),
        )

    def _is_allowed(
        self, members: Sequence["sequence.Sequence"], estimates: Sequence[DraftEstimate], width: int
    ) -> bool:
        """Whether every row's ledger allows a step of that width, all that it costs included."""
        plain_s = self.plain_s(len(members))
        work = _asked(members, estimates, width)
        taken_s = self.model_s(len(members), work.num_fed, work.num_drafted)
        taken_s += self.step_s([o.num_pending + _num_drafted(o, width) for o in estimates])
        if self.replays:
            # The next step is so much dearer than a plain one if all drafts are wrong, but one token.
            again = [o.num_pending + 1 if _num_drafted(o, width) else 1 for o in estimates]
            taken_s += max(0.0, self.step_s(again) - plain_s)
        return all(
            s.drafts is None or s.drafts.slowdown_budget.allows(taken_s, plain_s, estimate.num_tokens > 0)
            for s, estimate in zip(members, estimates, strict=True)
        )

    def _spread_s(self, num_rows: int, work: PlannedDraft) -> float:
        """Seconds of the draft model's part of a step, of catching up only the share that the step bears."""
        steady_s = self.model_s(num_rows, min(work.num_fed, STEADY_FED), work.num_drafted)
        return steady_s + work.share * (self.model_s(num_rows, work.num_fed, work.num_drafted) - steady_s)

    def without_drafts(
        self, members: Sequence["sequence.Sequence"], lengths: Sequence[int]
    ) -> list[RowInput]:
        """The feeds of a step that checks nothing. See plan()."""
        num_pending = [max(1, len(s.tokens) - length) for s, length in zip(members, lengths, strict=True)]
        return [RowInput(s.tokens[-num:], len(s.tokens)) for s, num in zip(members, num_pending, strict=True)]

    def without_inexact(self, inputs: Sequence[RowInput]) -> list[RowInput]:
        """In exact mode, cut drafts where a forward would have a width that is not known to be exact.

        That is so where the draft model drafted less than was planned.
        """
        if self.exact_shapes is None:
            return list(inputs)
        return self._cut(inputs) if self.batched else [self._cut([row_input])[0] for row_input in inputs]

    def _cut(self, inputs: Sequence[RowInput]) -> list[RowInput]:
        """What one forward may feed of these: drafts up to the widest exact width, without any if none is."""
        widest, least = (max(map(count, inputs)) for count in (lambda f: f.width, lambda f: len(f.pending)))
        widths = [
            w for w in range(least, widest + 1) if w == 1 or (len(inputs), w) in (self.exact_shapes or ())
        ]
        width = max(widths, default=0)
        if width == widest:
            return list(inputs)
        cut = [
            replace(row_input, draft=row_input.draft[: max(0, width - len(row_input.pending))])
            for row_input in inputs
        ]
        return [
            row_input if row_input.draft else RowInput(row_input.pending, row_input.position)
            for row_input in cut
        ]

    def _widths(self, estimates: Sequence[DraftEstimate], num_rows: int) -> list[int]:
        """The widths in question: those that were measured, and those at which a draft stops being sure."""
        widest = max(estimate.num_pending + estimate.num_tokens for estimate in estimates)
        stops = {estimate.num_pending + stop for estimate in estimates for stop in estimate.stops}
        widths = sorted({w for w in (*self.costs.widths, *stops) if 1 < w < widest} | {widest} - {1})
        if self.exact_shapes is None:
            return widths
        # Rows that take a forward each are as exact as one.
        together = num_rows if self.batched else 1
        return [width for width in widths if (together, width) in self.exact_shapes]


def _room(s: "sequence.Sequence") -> int:
    """Most tokens that a draft may have."""
    return s.request.max_tokens - s.num_answered - 1


def _probe_of(s: "sequence.Sequence") -> DraftEstimate:
    assert s.drafts
    return s.drafts.length.estimate(min(_room(s), s.drafts.limit, PROBE_TOKENS), s.drafts.length.rate)


def _asked(
    members: Sequence["sequence.Sequence"], estimates: Sequence[DraftEstimate], width: int
) -> PlannedDraft:
    return PlannedDraft.combine(
        (s.drafts.length, estimate, _num_drafted(estimate, width))
        for s, estimate in zip(members, estimates, strict=True)
        if s.drafts and estimate.draft.source == MODEL
    )


def _num_drafted(estimate: DraftEstimate, width: int) -> int:
    """How many tokens of its draft a row takes into a step of that width; its pending ones go first."""
    return max(0, min(width - estimate.num_pending, estimate.num_tokens))


def _row_input(s: "sequence.Sequence", estimate: DraftEstimate, width: int) -> RowInput:
    pending, position = s.tokens[len(s.tokens) - estimate.num_pending :], len(s.tokens)
    num_drafted = _num_drafted(estimate, width)
    if num_drafted == 0:
        return RowInput(pending, position)
    if estimate.draft.source == MODEL:
        num_to_draft = s.drafts.length.num_to_draft(num_drafted) if s.drafts else num_drafted
        return RowInput(
            pending, position, source=estimate.draft, num_wanted=num_drafted, num_to_draft=num_to_draft
        )
    return RowInput(pending, position, estimate.draft.tokens[:num_drafted], estimate.draft)
