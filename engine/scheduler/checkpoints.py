"""Choose lengths of a long prompt at which state is kept, for later prompts that diverge from it anywhere.

State cannot be cut, so a prompt that diverges from an earlier one is computed from the last such length on.
"""

from bisect import bisect_right
from collections.abc import Sequence as SequenceOf

import numpy as np

from reprise.engine.batch.sequence import Sequence
from reprise.engine.scheduler.kept_prefixes import KeptPrefixes
from reprise.engine.text.templates.message_openings import MessageOpenings
from reprise.engine.vision.keys import whole_images

MAX_GAP_TOKENS = 1024
"""Maximum tokens between two of these lengths near the prompt's end, where most prompts part."""

NUM_RUNGS = 16
"""Further away the gaps grow, unless all of them take little memory: a gap is at most 1/NUM_RUNGS of what
follows it."""

MIN_SHARED_TOKENS = 32
"""A shorter shared prefix is not waited for, and no state is kept for it alone."""

WITHIN_WEIGHT = 0.25
"""How likely a prompt parts from another in the middle of a message, if 1 is where one begins."""

EVEN_SHARE = 0.25
"""Share of the memory that one prompt's ladder may take for gaps that do not grow toward its start."""

OPENING_REACH = 256
"""Number of a prompt's last tokens in which the opening of the answer is searched."""


class Checkpoints:
    """Chooses the lengths of prompts at which state is kept. Used by the engine's thread only.

    openings: the tokens with which messages begin in prompts.
    """

    def __init__(self, kept: KeptPrefixes, openings: MessageOpenings) -> None:
        self._kept = kept
        self._openings, self._opening = openings, list(openings.answer)

    def choose(self, sequence: Sequence, kept: int, length: int) -> None:
        """Choose the lengths at which to keep state: where prompts diverge, and where the answer opens.

        The next turn's prompt may leave out the reasoning, and then diverges where the answer opens. If the
        tokens that open the answer stay in later turns, state is kept only after them.

        kept: leading tokens in the prefix cache. length: leading tokens in the sequence's own caches.
        """
        opening, num_tokens = self.opening(sequence.tokens), len(sequence.tokens)
        if num_tokens - opening == self._openings.num_lasting:
            opening = 0
        prefill = sequence.prefill
        prefill.num_found, prefill.opening = length, opening
        prefill.keep_at = {at for at in (kept, opening) if at >= length + MIN_SHARED_TOKENS}

    def plan(self, sequence: Sequence, max_cuts: int) -> None:
        """Choose more lengths of a prompt at which to keep state, for later prompts that diverge from it.

        They are the end of system text and tools, and a ladder of lengths up to the prompt's end.
        max_cuts: how many chunks may be cut short only to keep state.
        """
        if not self._keeps(sequence):
            return
        prefill, start, end = sequence.prefill, sequence.prefill.num_computed, len(sequence.tokens) - 1
        if self._kept.can_look_back:
            max_cuts = end
        elif not prefill.opening:
            # Where the answer opens, other prompts are cut.
            max_cuts += 1
        head = sequence.request.head_tokens
        if start + MIN_SHARED_TOKENS <= head < end and head not in prefill.keep_at and max_cuts:
            prefill.keep_at.add(head)
            max_cuts -= 1
        if end - start <= MAX_GAP_TOKENS:
            return
        state_bytes = self._kept.memory_budget.state_bytes(end)
        # One prompt's ladder takes at most half of the memory.
        max_rungs = min(max_cuts, self._kept.budget_bytes // (2 * state_bytes + 1))
        gap = -(-(end - start) // (max_rungs + 1))
        prefill.key = sequence.text_key()
        borders = np.flatnonzero(np.isin(prefill.key.ids, list(self._openings.tokens))).tolist()
        # Twice as many as there are gaps, as a rung at a border makes a gap shorter.
        most = 2 * (end - start) // MAX_GAP_TOKENS
        is_even = most <= max_rungs and most * state_bytes <= EVEN_SHARE * self._kept.budget_bytes
        num_rungs = max(NUM_RUNGS, most) if is_even else NUM_RUNGS
        rungs = choose_rungs(sorted(prefill.keep_at), borders, start, end, gap, num_rungs)
        rungs = [whole_images(sequence.request.images, at) for at in rungs]
        likely = {*borders}
        prefill.rungs = {
            at: 1.0 if at in likely else WITHIN_WEIGHT
            for at in rungs[:max_rungs]
            if at not in prefill.keep_at
        }

    def wants_end(self, sequence: Sequence) -> bool:
        """Whether to keep state at the end of a complete prompt, so that it need not be computed again."""
        prefill = sequence.prefill
        if not self._keeps(sequence) or sequence.num_answered:
            return False
        kept = prefill.kept_lengths - {prefill.opening}
        last = max((at for at in kept if at <= prefill.num_computed), default=prefill.num_found)
        return prefill.num_computed > max(last, prefill.num_found)

    def _keeps(self, sequence: Sequence) -> bool:
        """Whether state of a sequence's prompt is kept. Where it wants log probabilities, none is used."""
        has_use = self._kept.cache is not None and self._kept.needs_state
        return has_use and not sequence.request.prompt_logprobs

    def opening(self, tokens: list[int]) -> int:
        """Return the number of tokens before those that open the last answer; 0 if none open one."""
        count = len(self._opening)
        for at in range(len(tokens) - count, max(0, len(tokens) - OPENING_REACH), -1):
            if count and tokens[at : at + count] == self._opening:
                return at
        return 0


def choose_rungs(
    fixed: SequenceOf[int],
    borders: SequenceOf[int],
    start: int,
    end: int,
    min_gap: int = 0,
    num_rungs: int = NUM_RUNGS,
) -> list[int]:
    """Choose the ladder's lengths between start and end, ascending, with gaps that grow toward the start.

    The next length is the last fixed one within its gap, else the last border in the gap's second half, else
    the gap's end.
    fixed: lengths at which state is kept in any case. borders: lengths where messages begin. Both ascending.
    min_gap: minimum tokens of a gap, if more than MAX_GAP_TOKENS. num_rungs: see NUM_RUNGS.
    """
    rungs: list[int] = []
    at = start
    while (gap := max(MAX_GAP_TOKENS, min_gap, (end - at) // num_rungs)) < end - at:
        at = _last_within(fixed, at, at + gap) or _last_within(borders, at + gap // 2, at + gap) or at + gap
        rungs.append(at)
    return rungs


def _last_within(lengths: SequenceOf[int], after: int, limit: int) -> int:
    """Return the last of the ordered lengths in (after, limit]; 0 if there is none."""
    place = bisect_right(lengths, limit)
    return lengths[place - 1] if place and lengths[place - 1] > after else 0
