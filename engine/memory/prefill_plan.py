"""The prefill plan: how many tokens of each prompt the next step feeds, by memory and by time.

Memory comes first: MemoryBudget.make_room() limits each prompt's chunk with limit_chunks(). Then
PrefillPlanner divides the step's seconds among the prompts, by the measured seconds of earlier chunks.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cache, partial

from reprise.engine.batch.batch import Device
from reprise.engine.batch.sequence import Sequence
from reprise.engine.vision.image_features import Looking

CONTEXT_TOKENS = 256
"""Attending to this many tokens is assumed to take no longer than the rest of a forward pass."""

RATE = 0.5
"""How much of the difference between measured and expected seconds one chunk teaches, on a log scale."""

MAX_SURPRISE = math.log(2.0)
"""Maximum difference that a chunk can teach, as the logarithm of measured over expected seconds."""

MAX_CAUTION = math.log(4.0)
"""Maximum factor, as a logarithm, by which chunks that took too long raise the estimate of the next."""

UNKNOWN_S = 1.0
"""Seconds that each token is expected to take before anything is known."""

OVERRUN_SHARE = 0.005
"""Share of chunks that may take longer than estimated."""

MARGIN_STEP = 0.1
MIN_MARGIN, FIRST_MARGIN, MAX_MARGIN = 0.05, 0.2, math.log(3.0)


class PrefillCosts:
    """Estimates the seconds of a chunk such that at most OVERRUN_SHARE of all chunks take longer.

    A chunk with more tokens, or after more tokens, than any measured one is estimated by an upper bound.
    """

    def __init__(self) -> None:
        # The factors f, a and b; empty until the first chunk was measured.
        self._factors: list[float] = []
        # Largest chunk so far, and the most tokens that one attended to.
        self._num_tokens, self._context = 0, 0.0
        # Logarithms. margin: follows the noise. caution: raised by chunks that took too long, soon forgotten.
        self._margin, self._caution = FIRST_MARGIN, 0.0

    def seconds(self, num_tokens: int, num_before: int, token_s: float = 0.0) -> float:
        """Return an upper estimate of the seconds of a chunk; 0 for a chunk without tokens.

        num_before: tokens of the prompt that were computed before it.
        token_s: an upper bound per token until a chunk was measured; 0 if not known.
        """
        if not self._factors:
            return (token_s or UNKNOWN_S) * num_tokens
        if not num_tokens:
            return 0.0
        return self._expected(num_tokens, num_before) * math.exp(self._margin + self._caution)

    def observe(self, num_tokens: int, num_before: int, seconds: float | None) -> None:
        """Learn from a chunk. A single outlier (a pause of the machine) is forgotten after a few chunks.

        seconds: None if they are not known.
        """
        if seconds is None:
            return
        context = num_before + num_tokens / 2
        parts = _parts(num_tokens, context)
        if not self._factors:
            each_s = max(seconds, 1e-9) / (2 + context / CONTEXT_TOKENS)
            self._factors = [each_s, each_s / num_tokens, each_s / num_tokens / CONTEXT_TOKENS]
            self._num_tokens, self._context = num_tokens, context
        expected = self._expected(num_tokens, num_before)
        surprise = math.log(max(seconds, 1e-9) / expected)
        overrun = surprise - self._margin - self._caution
        if overrun > 0:
            self._caution = min(MAX_CAUTION, self._caution + overrun)
            self._margin = min(MAX_MARGIN, self._margin + MARGIN_STEP)
        else:
            self._caution /= 2
            # In balance when OVERRUN_SHARE of all chunks take longer than estimated.
            self._margin = max(MIN_MARGIN, self._margin - MARGIN_STEP * OVERRUN_SHARE)
        if num_tokens > self._num_tokens or context > self._context:
            # Only a bound was known.
            learned = min(surprise, MAX_SURPRISE)
        else:
            learned = RATE * max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))
        # Each factor by its share of the seconds, so that all stay positive.
        fitted = sum(factor * part for factor, part in zip(self._factors, parts, strict=True))
        self._factors = [
            factor * math.exp(learned * factor * part / fitted)
            for factor, part in zip(self._factors, parts, strict=True)
        ]
        self._num_tokens = max(self._num_tokens, num_tokens)
        self._context = max(self._context, context)

    def _expected(self, num_tokens: int, num_before: int) -> float:
        num_known = min(num_tokens, self._num_tokens)
        context = num_before + num_tokens / 2
        known_context = min(context, self._context)
        parts = _parts(num_known, known_context)
        fitted = sum(factor * part for factor, part in zip(self._factors, parts, strict=True))
        # Beyond what is known, no part grows faster than the tokens, or than the context.
        growth = (context + CONTEXT_TOKENS) / (known_context + CONTEXT_TOKENS)
        return fitted * growth * num_tokens / num_known


def _parts(num_tokens: int, context: float) -> tuple[float, float, float]:
    return 1.0, float(num_tokens), num_tokens * context


MIN_CHUNK_TOKENS = 4
"""Prompt tokens that a step feeds where nothing says how long it may take, so that prompts advance."""

MAX_STALL_MS = 50.0
"""Milliseconds by which prefill may lengthen a step while rows decode: a pause that readers hardly see. It is
exceeded in at most one of a hundred such steps."""

STALL_STEPS = 3.0
"""Plain steps that the chunks of a step may take where these are longer than MAX_STALL_MS. A forward pass
of one token takes about one, and estimates have a margin: with less, a chunk would be little else."""

ALONE_S, ALONE_STEPS = 1.0, 4.0
"""Maximum seconds of a step's chunks while no row decodes, or plain steps if these take longer: how long a
cancellation or a new request waits."""

SHARE = 4
"""The oldest prompt gets 1/SHARE of the time."""

SHARE_PASSES = 2
"""Forward passes of one token that a share in every step must hold; else it is one step in SHARE."""

Seconds = Callable[[int], float]
"""Returns an upper estimate of the seconds that this many more tokens of a prompt take."""


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """Limits of one step's prefill: the tokens that fit into seconds, but at most max_tokens.

    min_tokens: the tokens to feed if not even one fits into the seconds.
    """

    seconds: float
    min_tokens: int
    max_tokens: int

    @classmethod
    def of_step(
        cls,
        num_decoding: int,
        max_stall_ms: float,
        max_tokens: int,
        plain_s: float = 0.0,
        alone_share: float = 1.0,
    ) -> "PrefillLimits":
        """Return the limits of a step in which num_decoding rows wait for the prompts.

        max_stall_ms: 0 for as little prefill as possible. max_tokens: those that memory and settings allow.
        plain_s: seconds of a plain step; 0 if not known. alone_share: of the limit while no row decodes.
        """
        if num_decoding and not max_stall_ms:
            return cls(0.0, min(MIN_CHUNK_TOKENS, max_tokens), max_tokens)
        seconds = alone_share * max(ALONE_S, ALONE_STEPS * plain_s)
        if num_decoding:
            seconds = max(max_stall_ms / 1000, STALL_STEPS * plain_s)
        # A token that takes longer attends to a long context, and a second one would take as long again.
        min_tokens = 1 if plain_s else MIN_CHUNK_TOKENS
        return cls(seconds, min(min_tokens, max_tokens), max_tokens)


def plan_prefill(
    remaining: SequenceOf[int],
    costs: SequenceOf[Seconds],
    limits: PrefillLimits,
    most: SequenceOf[int] | None = None,
    num_passed: int = 0,
) -> list[int]:
    """Divide a step's seconds among prompts that lack remaining[i] >= 0 tokens; return the tokens of each.

    remaining: the oldest prompt first. costs: each prompt's seconds for a number of tokens.
    most: the maximum tokens of each prompt. num_passed: steps since the oldest prompt was fed.

    Prompts that complete within the limits are served first, then those that lack less than a quarter of what
    the oldest lacks, so that a short prompt never waits for a long one. The oldest prompt always gets a
    quarter of the seconds, so that a long prompt always advances. Where a quarter hardly pays for more than
    the forward pass, the oldest prompt gets all seconds of every fourth step instead.
    """
    chunks, spent_s = [0] * len(remaining), [0.0] * len(remaining)
    fed = [min(pair) for pair in zip(remaining, most or remaining, strict=True)]

    def extend(i: int, max_tokens: int, max_s: float) -> None:
        """Give a prompt as many tokens as fit into max_s seconds, those that it has included."""
        num_tokens = count_fitting(costs[i], min(fed[i], max_tokens), max_s)
        if num_tokens > chunks[i]:
            chunks[i], spent_s[i] = num_tokens, costs[i](num_tokens)

    if remaining and SHARE_PASSES * costs[0](1) <= limits.seconds / SHARE:
        extend(0, -(-limits.max_tokens // SHARE), limits.seconds / SHARE)
    is_due = not any(chunks) and num_passed >= SHARE - 1

    def room(i: int) -> tuple[int, float]:
        """Return the tokens and seconds that a prompt may have, those that it has included."""
        return limits.max_tokens - sum(chunks) + chunks[i], limits.seconds - sum(spent_s) + spent_s[i]

    def rank(i: int) -> tuple[bool, bool, bool]:
        """Return the smaller, the earlier the prompt is served: late are those that cannot be completed."""
        max_tokens, max_s = room(i)
        is_late = remaining[i] > min(fed[i], max_tokens) or costs[i](remaining[i]) > max_s
        return not (is_due and i == 0), is_late, SHARE * remaining[i] >= remaining[0]

    order = sorted(range(len(remaining)), key=rank)
    for i in order:
        extend(i, *room(i))
    if not any(chunks):
        for i in order:
            chunks[i] = min(fed[i], limits.min_tokens - sum(chunks))
    return chunks


def divide_tokens(remaining: SequenceOf[int], max_tokens: int) -> list[int]:
    """Divide max_tokens among prompts as plan_prefill() would if time were no limit."""
    limits = PrefillLimits(math.inf, 0, max_tokens)
    return plan_prefill(remaining, [lambda _: 0.0] * len(remaining), limits)


def count_fitting(cost: Callable[[int], float], max_tokens: int, max_cost: float) -> int:
    """Return the most tokens, up to max_tokens, whose cost is at most max_cost; 0 if none."""
    return bisect_right(range(1, max_tokens + 1), max_cost, key=cost)


RESERVED_CHUNK_TOKENS = 256
"""Prompt tokens of a step for which memory is reserved. A step may feed more if there is memory left."""

CHUNK_STEP = 64
"""Prompt tokens by which that is more."""

PROMPT_LOGPROBS_CHUNK = 128
"""Maximum prompt tokens in a chunk whose log probabilities are wanted, but for an image that is fed whole.
Each token needs logits of its own."""


def find_fitting(num_bytes: Callable[[int], int], least: int, largest: int, max_bytes: int) -> int:
    """Return how many prompt tokens fit into max_bytes: least, or more but not largest."""
    sizes = range(least, max(largest, least + 1), CHUNK_STEP)
    return sizes[max(0, bisect_right(sizes, max_bytes, key=num_bytes) - 1)]


def limit_chunks(prefilling: SequenceOf[Sequence], num_tokens: int) -> None:
    """Divide num_tokens, as memory allows, among prompts: set each one's max_chunk_tokens."""
    chunks = divide_tokens([s.num_to_prefill for s in prefilling], num_tokens)
    for sequence, chunk in zip(prefilling, chunks, strict=True):
        prefill = sequence.prefill
        prefill.max_chunk_tokens = chunk
        if chunk and prefill.looking:
            # An image may have to be fed as a whole.
            prefill.looking.look_at(start := prefill.num_computed)
            prefill.max_chunk_tokens = max(1, prefill.looking.end_of(start, start + chunk) - start)


MIN_CUT_TOKENS = 50
"""Tokens of a prompt for each cut of a chunk to keep state, where the time is not known."""

MAX_CUT_SHARE = 0.02
"""Share of a prompt's time that all its cuts may take."""


class PrefillPlanner:
    """Plans each step's chunks by their seconds, and learns these. Used by the engine's thread only.

    tower_costs: the costs of the vision tower's units of work, by whether rows decode and kind of stage.
    """

    def __init__(self, device: Device) -> None:
        self._max_stall_ms, self._device = MAX_STALL_MS, device
        # By whether rows decode, and whether log probabilities are wanted. A model's chunks of 2,048 tokens
        # say little about its chunks of 32.
        self._costs: defaultdict[tuple[bool, bool], PrefillCosts] = defaultdict(PrefillCosts)
        self.tower_costs: defaultdict[tuple[bool, str], PrefillCosts] = defaultdict(PrefillCosts)
        # Steps since the oldest prompt was fed.
        self._num_passed = 0

    def plan(self, prefilling: SequenceOf[Sequence], num_rows: int, alone_share: float = 1.0) -> list[int]:
        """Return how many tokens of each prompt this step feeds.

        num_rows: those that decode meanwhile. alone_share: of the limit if there are none.
        """
        most = [s.prefill.max_chunk_tokens for s in prefilling]
        costs: list[Seconds] = [partial(self._seconds, s, num_rows) for s in prefilling]
        remaining = [s.num_to_prefill for s in prefilling]
        for at, sequence in enumerate(prefilling):
            if looking := sequence.prefill.looking:
                looking.look_at(num_computed := sequence.prefill.num_computed)
                most[at] = min(most[at], looking.end_of(num_computed, num_computed + most[at]) - num_computed)
                if looking.num_left:
                    # The tower's units of work are its tokens until it has seen the image.
                    remaining[at] = most[at] = looking.num_left
                    costs[at] = self._work_s(looking, num_rows)
        limits = PrefillLimits.of_step(
            num_rows, self._max_stall_ms, sum(most), self._device.plain_s, alone_share
        )
        chunks = plan_prefill(remaining, costs, limits, most, self._num_passed)
        self._num_passed = 0 if chunks[0] else self._num_passed + 1
        return chunks

    def costs_of(self, sequence: Sequence, num_rows: int) -> PrefillCosts:
        """Return the costs of a sequence's chunks; log probabilities need logits, which cost more."""
        return self._costs[num_rows > 0, sequence.needs_prompt_logprobs]

    def left_s(self, prefilling: SequenceOf[Sequence]) -> float:
        """Return an upper estimate of the seconds of all remaining prefill if no row decodes."""
        total_s = 0.0
        for sequence in prefilling:
            prefill = sequence.prefill
            total_s += self._seconds(sequence, 0, sequence.num_to_prefill)
            for kind, units in prefill.looking.left(prefill.num_computed) if prefill.looking else ():
                total_s += self.tower_costs[False, kind].seconds(units, 0)
        return total_s

    def max_cuts(self, sequence: Sequence) -> int:
        """Return how often a prompt may be cut; each cut costs about a forward pass of one token."""
        num_left, plain_s = sequence.num_to_prefill, self._device.plain_s
        if not plain_s:
            return num_left // MIN_CUT_TOKENS
        return int(MAX_CUT_SHARE * self._seconds(sequence, 0, num_left) / plain_s)

    def _seconds(self, sequence: Sequence, num_rows: int, num_tokens: int) -> float:
        """Return an upper estimate of the seconds that the next num_tokens of a prompt take."""
        if not (num_fed := min(num_tokens, sequence.num_to_prefill)):
            return 0.0
        # Long chunks do not tell how much of their time is the forward pass itself. A plain step does.
        costs, plain_s = self.costs_of(sequence, num_rows), self._device.plain_s
        return max(plain_s, costs.seconds(num_fed, sequence.prefill.num_computed, plain_s))

    def _work_s(self, looking: Looking, num_rows: int) -> Seconds:
        """Return an upper estimate of the seconds that the next units of the tower's work take."""
        seconds = cache(lambda kind, units: self.tower_costs[num_rows > 0, kind].seconds(units, 0))

        def work_s(num_units: int) -> float:
            total = 0.0
            for kind, units in looking.stages_left:
                if num_units <= 0:
                    break
                total += seconds(kind, min(units, num_units))
                num_units -= units
            return total

        return work_s
