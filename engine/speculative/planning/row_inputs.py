"""What every row feeds in a verification step, once the step's width is chosen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from reprise.drafters.base import NO_DRAFT
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.speculative.draft_length import DraftEstimate
from reprise.engine.speculative.draft_model.forecast import MODELS
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.speculative.verify import RowInput
from reprise.engine.speculative.window import Window, WindowInput

if TYPE_CHECKING:
    from reprise.engine.sampling.grammar import Matcher


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


def may_draft(s: Member) -> bool:
    """Whether a draft is possible for a row: drafting is on, and more than the last token is to come."""
    return s.drafts is not None and s.drafts.can_draft and max_draft_tokens(s) > 0


def max_draft_tokens(s: Member) -> int:
    """Return the maximum tokens of a draft: the answer's remaining tokens but the bonus token."""
    return s.request.max_tokens - s.num_answered - 1


def num_drafted_at(estimate: DraftEstimate, width: int) -> int:
    """Return how many drafted tokens and masks a row feeds in a step of a width, after its newest token."""
    return min(width - 1, estimate.num_tokens)


def num_text_at(estimate: DraftEstimate, width: int) -> int:
    """Return how many drafted tokens, masks not counted, a row feeds in a step of a width."""
    num_drafted = num_drafted_at(estimate, width)
    return estimate.splits[num_drafted] if estimate.splits else num_drafted


def fed_width(estimate: DraftEstimate, width: int) -> int:
    """Return how many tokens a row feeds in a step of a width: its newest, drafted ones and masks."""
    return 1 + num_drafted_at(estimate, width)


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
    if estimate.splits and s.drafts and s.drafts.masks:
        num_fed = min(width - 1, estimate.num_tokens)
        tokens = draft.tokens[: estimate.splits[num_fed]]
        mask_tokens = [s.drafts.masks.mask_token_id] * (num_fed - len(tokens))
        return RowInput(newest, position, tokens, draft if tokens else NO_DRAFT, mask_tokens=mask_tokens)
    if tokens := draft.tokens[: width - 1]:
        return RowInput(newest, position, tokens, draft)
    # The draft model makes its tokens later.
    if s.drafts and draft.source in MODELS and (num_wanted := num_drafted_at(estimate, width)):
        num_to_draft = s.drafts.forecast.num_to_draft(num_wanted)
        return RowInput(newest, position, source=draft, num_wanted=num_wanted, num_to_draft=num_to_draft)
    return RowInput(newest, position)
