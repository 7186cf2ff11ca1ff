"""Whether the next step is to be a wide one, and what each row takes into it."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from drafters.base import Draft
from engine import sequence
from engine.costs import StepCosts
from engine.drafted_step import Feed
from engine.drafting import MODEL, MODEL_PRIOR
from engine.gate import LEAST_GAIN, Offer, choose_width, steady

MOST_PENDING = 16
"""A row with more pending tokens takes no draft until they are in its cache."""


REFRESH_ASKS = 256
"""How often the cheapest wide step is looked up anew: costs are learned, slowly."""


class Planner:
    """Weighs what drafts promise against what steps cost.

    batched: whether all rows share a forward; otherwise each takes its own, and costs add up.
    exact_shapes: if given, the only (rows, width) beside width 1 that a forward may have.
    model_costs: what steps of the draft model cost, if there is one.
    replays: whether a row whose draft was rejected is fed once more what it kept, having recurrent state.
    """

    def __init__(
        self,
        costs: StepCosts,
        batched: bool,
        exact_shapes: Collection[tuple[int, int]] | None = None,
        model_costs: StepCosts | None = None,
        replays: bool = False,
    ) -> None:
        self.costs = costs
        self.batched = batched
        self.exact_shapes = exact_shapes
        self.model_costs = model_costs
        self.replays = replays
        self.num_asked = 0
        self._least_ratios: dict[int, float] = {}

    def step_s(self, widths: Sequence[int]) -> float:
        """Expected seconds of a step whose rows have these widths."""
        if self.batched:
            return self.costs.seconds(len(widths), max(widths))
        return sum(self.costs.seconds(1, width) for width in widths)

    def plain_s(self, num_rows: int) -> float:
        """Expected seconds of a plain step."""
        return self.step_s([1] * num_rows)

    def model_s(self, num_rows: int, num_tokens: int) -> float:
        """Expected seconds that the draft model takes for drafts of up to num_tokens."""
        return num_tokens * self.model_costs.seconds(num_rows, 1) if self.model_costs else 0.0

    def plan(self, members: Sequence["sequence.Sequence"], lengths: Sequence[int]) -> list[Feed]:
        """What a wide step over these rows would feed; empty where a plain step is the better one.

        lengths: (rows,) tokens in each row's cache. While a plain step is unread the plan is a forecast:
        the token that it will bring is missing.
        """
        offers = []
        for s, length in zip(members, lengths, strict=True):
            num_pending = max(1, len(s.tokens) - length)
            try:
                offers.append(self._ask(s, num_pending, len(members)))
            # Drafts are a bonus: the answer goes on.
            except Exception as fault:
                s.give_up_drafts(fault)
                offers.append(Offer(num_pending=num_pending))
        # What pays for none of them if all were like it does not pay for all of them together.
        if not any(o.is_worth or o.num_pending > 1 for o in offers):
            return []
        width = self._choose(members, offers)
        if width == 1 and all(o.num_pending == 1 for o in offers):
            return []
        return [_feed(s, offer, width) for s, offer in zip(members, offers, strict=True)]

    def _ask(self, s: "sequence.Sequence", num_pending: int, num_rows: int) -> Offer:
        """A row's best draft, or the draft model's where no drafter has one that is worth its cost."""
        room = s.request.max_tokens - s.num_answered - 1
        if s.drafts is None or room < 1 or num_pending > MOST_PENDING:
            return Offer(num_pending=num_pending)

        def is_worth(offer: Offer) -> bool:
            widths = self._widths([offer], num_rows)
            return choose_width([offer], widths, lambda w: self.step_s([w] * num_rows), lambda _: True) > 1

        offer = s.drafts.propose(room, LEAST_GAIN * self._least_ratio(num_rows), is_worth)
        if not offer.is_worth and s.drafts.uses_model and self.model_costs is not None:
            expected = steady(s.drafts.model_rate, min(room, s.drafts.limit))
            offer = Offer(expected, draft=Draft((), MODEL, 0, MODEL_PRIOR), is_worth=True)
        return replace(offer, num_pending=num_pending)

    def _least_ratio(self, num_rows: int) -> float:
        """The cost of the cheapest wide step over that of a plain one. Most drafts fail already at this."""
        found = self._least_ratios.get(num_rows)
        if found is None or self.num_asked % REFRESH_ASKS == 0:
            wide_s = [self.step_s([w] * num_rows) for w in self.costs.widths if w > 1]
            found = self._least_ratios[num_rows] = min(wide_s, default=0.0) / self.plain_s(num_rows)
        self.num_asked += 1
        return found

    def _choose(self, members: Sequence["sequence.Sequence"], offers: Sequence[Offer]) -> int:
        plain_s = self.plain_s(len(members))

        def step_s(width: int) -> float:
            num_modelled = max((_num_drafted(o, width) for o in offers if o.draft.source == MODEL), default=0)
            drafting_s = self.model_s(len(members), num_modelled)
            return drafting_s + self.step_s([o.num_pending + _num_drafted(o, width) for o in offers])

        def replay_s(width: int) -> float:
            """By how much the next step is dearer than a plain one if all drafts are wrong, but one token."""
            again = [o.num_pending + 1 if _num_drafted(o, width) else 1 for o in offers]
            return max(0.0, self.step_s(again) - plain_s)

        def is_allowed(width: int) -> bool:
            taken_s = step_s(width) + (replay_s(width) if self.replays else 0.0)
            return all(
                s.drafts is None or s.drafts.ledger.allows(taken_s, plain_s, offer.num_tokens > 0)
                for s, offer in zip(members, offers, strict=True)
            )

        return choose_width(offers, self._widths(offers, len(members)), step_s, is_allowed)

    def without_drafts(self, members: Sequence["sequence.Sequence"], lengths: Sequence[int]) -> list[Feed]:
        """The feeds of a step that checks nothing. See plan()."""
        num_pending = [max(1, len(s.tokens) - length) for s, length in zip(members, lengths, strict=True)]
        return [Feed(s.tokens[-num:], len(s.tokens)) for s, num in zip(members, num_pending, strict=True)]

    def without_inexact(self, feeds: Sequence[Feed]) -> list[Feed]:
        """In exact mode, drop all drafts if a forward would have a width that is not known to be exact.

        That is so where the draft model drafted less than was planned.
        """
        if self.exact_shapes is None:
            return list(feeds)
        shapes = (
            [(len(feeds), max(f.width for f in feeds))] if self.batched else [(1, f.width) for f in feeds]
        )
        if all(width == 1 or (rows, width) in self.exact_shapes for rows, width in shapes):
            return list(feeds)
        return [Feed(feed.pending, feed.position) for feed in feeds]

    def _widths(self, offers: Sequence[Offer], num_rows: int) -> list[int]:
        """The widths in question: those that were measured, and those at which a draft stops being sure."""
        widest = max(offer.num_pending + offer.num_tokens for offer in offers)
        stops = {offer.num_pending + stop for offer in offers for stop in offer.stops}
        widths = sorted({w for w in (*self.costs.widths, *stops) if 1 < w < widest} | {widest} - {1})
        if self.exact_shapes is None:
            return widths
        # Rows that take a forward each are as exact as one.
        together = num_rows if self.batched else 1
        return [width for width in widths if (together, width) in self.exact_shapes]


def _num_drafted(offer: Offer, width: int) -> int:
    """How many tokens of its draft a row takes into a step of that width; its pending ones go first."""
    return max(0, min(width - offer.num_pending, offer.num_tokens))


def _feed(s: "sequence.Sequence", offer: Offer, width: int) -> Feed:
    pending, position = s.tokens[len(s.tokens) - offer.num_pending :], len(s.tokens)
    num_drafted = _num_drafted(offer, width)
    if num_drafted == 0:
        return Feed(pending, position)
    if offer.draft.source == MODEL:
        return Feed(pending, position, source=offer.draft, num_wanted=num_drafted, num_to_draft=num_drafted)
    return Feed(pending, position, offer.draft.tokens[:num_drafted], offer.draft)
