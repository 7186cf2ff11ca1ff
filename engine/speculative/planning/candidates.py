"""What the planner chooses among: widths, and the rows' inputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from reprise.drafters.base import NO_DRAFT
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.exact_widths import SHORT_TOKENS, Exactness
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import DraftEstimate
from reprise.engine.speculative.draft_model.forecast import MODELS
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.speculative.verify import RowInput
from reprise.engine.speculative.window import Window, WindowInput

if TYPE_CHECKING:
    from reprise.engine.sampling.grammar import Matcher


class CandidateWidths:
    """Chooses the candidate widths of steps, and cuts drafts to exact ones.

    costs: the target's, whose table has the measured widths.
    exact: if not None, it has the only (rows, width) besides width 1 that a forward pass may have.
    """

    def __init__(self, costs: StepCosts, exact: Exactness | None) -> None:
        self._costs = costs
        # By whether contexts are long.
        self._exact_shapes = None if exact is None else [exact.shapes(is_long) for is_long in (False, True)]
        self._is_long = False
        # See measured().
        self._measured: dict[tuple[int, int, bool], list[int]] = {}

    def note_longest(self, num_tokens: int) -> None:
        """Set the length of the longest row, before a step is planned or its drafts are cut."""
        if self._exact_shapes is not None:
            self._is_long = num_tokens + self._costs.widths[-1] > SHORT_TOKENS

    def candidates(self, estimates: Sequence[DraftEstimate], num_rows: int) -> list[int]:
        """Return the candidate widths: those measured, and those where a draft becomes less certain."""
        widest = max([len(estimate.expected) for estimate in estimates])
        stops = {1 + stop for estimate in estimates for stop in estimate.stops}
        measured = self.measured(num_rows, widest)
        if not stops:
            return measured
        return sorted({*measured, *self._exact([w for w in stops if 1 < w < widest], num_rows)})

    def measured(self, num_rows: int, widest: int) -> list[int]:
        """Return the measured widths below `widest`, and `widest`, the width of the longest draft."""
        asked = num_rows, widest, self._is_long
        if (found := self._measured.get(asked)) is None:
            widths = [*(w for w in self._costs.widths if 1 < w < widest), *{widest} - {1}]
            found = self._measured[asked] = self._exact(widths, num_rows)
        return found

    def _exact(self, widths: list[int], num_rows: int) -> list[int]:
        """Return the widths that are allowed in exact mode."""
        if self._exact_shapes is None:
            return widths
        # Rows with a forward pass each are as exact as a single row.
        together = num_rows if self._costs.batched else 1
        return [width for width in widths if (together, width) in self._exact_shapes[self._is_long]]

    def without_inexact(self, inputs: Sequence[RowInput]) -> list[RowInput]:
        """In exact mode, cut drafts if a forward pass would have a width that is not known to be exact.

        Drafts have such widths when the draft model drafted less than planned.
        """
        if self._exact_shapes is None:
            return list(inputs)
        self.note_longest(max([row_input.position for row_input in inputs]))
        if self._costs.batched:
            return self._cut(inputs)
        return [self._cut([row_input])[0] for row_input in inputs]

    def _cut(self, inputs: Sequence[RowInput]) -> list[RowInput]:
        """Cut the drafts of one forward pass to its widest exact width; drop them if no width is exact."""
        widest = max(row_input.width for row_input in inputs)
        width = max(self._exact(list(range(2, widest + 1)), len(inputs)), default=1)
        if width == widest:
            return list(inputs)
        cut = []
        for row_input in inputs:
            draft = row_input.draft[: width - 1]
            source = row_input.source if draft else NO_DRAFT
            mask_tokens = row_input.mask_tokens[: width - 1 - len(draft)]
            cut.append(replace(row_input, draft=draft, source=source, mask_tokens=mask_tokens))
        return cut


class Member(Protocol):
    """The part of Sequence that planning a step needs."""

    request: GenerationRequest
    tokens: list[int]
    drafts: SequenceDrafts | None
    matcher: "Matcher | None"
    window: Window | None
    sampling: int

    @property
    def num_answered(self) -> int:
        """Committed tokens of the answer."""

    def give_up_drafts(self, fault: Exception) -> None:
        """Draft nothing more for this row, because of a fault."""


def max_draft_tokens(s: Member) -> int:
    """Return the maximum tokens of a draft: the answer's remaining tokens but the bonus token."""
    return s.request.max_tokens - s.num_answered - 1


def without_drafts(members: Sequence[Member]) -> list[RowInput]:
    """Return the rows' inputs for a verification step without drafts."""
    return [RowInput(s.tokens[-1], len(s.tokens)) for s in members]


def window_input(s: Member, num_held: int) -> WindowInput:
    """Return the input of a row with a window. num_held: tokens in its cache, fewer than are committed."""
    assert s.window
    # Under a grammar a hole can only be filled once all tokens before it are known.
    size = 1 if s.matcher else s.window.settings.window_size
    window, pending = s.window.widen(size), s.tokens[num_held:]
    return WindowInput(s.tokens[-1], len(s.tokens), window=window, pending=pending)


def row_input(s: Member, estimate: DraftEstimate, width: int) -> RowInput:
    """Return the input of a row whose draft is cut to a step of a width."""
    newest, position, draft = s.tokens[-1], len(s.tokens), estimate.draft
    num_fed = estimate.num_at(width)
    # The draft model makes its tokens later.
    if s.drafts and num_fed and draft.source in MODELS:
        num_to_draft = s.drafts.forecast.num_to_draft(num_fed)
        return RowInput(newest, position, source=draft, num_wanted=num_fed, num_to_draft=num_to_draft)
    tokens = draft.tokens[: estimate.num_text_at(width)]
    mask_tokens: Sequence[int] = ()
    if s.drafts and s.drafts.masks:
        mask_tokens = [s.drafts.masks.mask_token_id] * (num_fed - len(tokens))
    return RowInput(newest, position, tokens, draft if tokens else NO_DRAFT, mask_tokens=mask_tokens)
