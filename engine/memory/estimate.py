"""Estimate the bytes that a step needs.

estimate = what is kept + the growth of one layer + working memory
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.columns import GROWTH_TOKENS, max_slots, round_columns
from reprise.engine.kv_cache.groups import count_cells
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.kv_cache.sliding_window import SLACK_TOKENS, window_columns
from reprise.engine.memory.footprint import Cells, Footprint
from reprise.engine.sampling.logits import ALL_NEEDS, LIKELIHOOD_ARRAYS, sampling_bytes

PENALTY_BYTES = 16
BIAS_BYTES = 8
"""Bytes of a row's penalties and of its biases per token of the vocabulary. Penalties have two arrays, both
twice while they change; a row may have another bias for its first tokens. Every row counts as having both,
and as sampled in the way that takes most: beside caches this is little."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory that one model, the target or the draft model, needs for its rows.

    sharing: what its rows share.
    width: maximum tokens that a decoding row feeds in one step.
    ids_per_token, spare_ids: n target tokens take at most n * ids_per_token + spare_ids tokens of this model.
    max_ids: the longest text that it takes, in its own tokens; None for no limit.
    """

    footprint: Footprint
    sharing: Sharing
    width: int
    ids_per_token: int = 1
    spare_ids: int = 0
    max_ids: int | None = None

    def num_ids(self, num_tokens: int) -> int:
        """Return the most tokens of this model that a text of num_tokens target tokens can take."""
        num_ids = num_tokens * self.ids_per_token + self.spare_ids
        return num_ids if self.max_ids is None else min(num_ids, self.max_ids)

    def logits_bytes(self, num_rows: int, num_positions: int) -> int:
        """Return the bytes of a step's logits, if each row computes logits at num_positions positions."""
        # Rows that have a forward each have their logits padded, and then joined.
        num_copies = 1 if self.sharing or num_rows == 1 else 3
        return num_copies * num_rows * num_positions * self.footprint.logits_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """One sequence's demand for memory.

    num_tokens: the sequence's length. prompt_logprobs: whether log probabilities of its prompt are wanted.
    windows: window -> columns of its own buffers of that window after the step, if they are known.
    vision_bytes: memory that its images take until they have been fed.
    """

    num_tokens: int
    prompt_logprobs: bool = True
    windows: Mapping[int, int] = field(default_factory=dict)
    vision_bytes: int = 0

    def window_columns(self, num_columns: int, widest_chunk: int) -> Cells:
        """Return a function from a window to the columns of the sequence's own buffers of that window.

        num_columns, widest_chunk: tokens, and the most fed at once, to estimate columns that are not known.
        """
        return lambda window: self.windows.get(window) or window_columns(num_columns, window, widest_chunk)


@dataclass
class StepDemands:
    """A step's demand for memory.

    rows: the rows that decode. complete: prompts that the step completes, so that they join the rows.
    others: all other prompts, with as many tokens as their own caches hold after the step.
    chunk_tokens: maximum tokens of a chunk in this step. widest_chunk: maximum tokens of all chunks so far;
        buffers of sliding windows have room for it.
    members: the target model's rows as they are now, if this is its next step.
    joined, prompts: rows and complete, which share buffers after the step; complete and others.
    longest: the length of the longest row after the step.
    """

    rows: SequenceOf[Demand]
    complete: SequenceOf[Demand]
    others: SequenceOf[Demand]
    chunk_tokens: int
    widest_chunk: int
    members: BatchedRows | None = None

    def __post_init__(self) -> None:
        self.joined = [*self.rows, *self.complete]
        self.prompts = [*self.complete, *self.others]
        self.longest = max((one.num_tokens for one in self.joined), default=0)


PROMPT_LOGPROBS_CHUNK = 128
"""Maximum prompt tokens in one chunk whose log probabilities are wanted: each needs logits of its own.

An image that is fed as a whole may be longer."""

STEADY_TOKENS = 32
"""Tokens by which rows may lengthen, while none joins or leaves, before a step is estimated again."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a step needs.

    kept: bytes that stay from step to step. growth: bytes for the growth of one layer's buffers.
    working: bytes while the step runs. operation: the most bytes that one operation of the step takes.
    """

    kept: int = 0
    growth: int = 0
    working: int = 0
    operation: int = 0

    @property
    def total(self) -> int:
        """All bytes that the step needs: kept, growth and working."""
        return self.kept + self.growth + self.working


class Estimator:
    """Estimates steps of models, as upper bounds. Lengths are in tokens of the target model.

    models: the target model and, if any, the draft model. vocab_size: of the target model.
    chunk_tokens: prompt tokens fed at once for which memory is reserved.
    ahead_tokens: maximum tokens by which rows lengthen until the next estimate, before they are rolled back.
    whole_tokens: the most tokens of an image, which have to be fed at once; 0 without images.
    """

    def __init__(
        self,
        models: SequenceOf[ModelMemory],
        vocab_size: int,
        chunk_tokens: int,
        ahead_tokens: int,
        whole_tokens: int = 0,
    ) -> None:
        self.models = models
        self.vocab_size = vocab_size
        self.chunk_tokens = chunk_tokens
        self._ahead_tokens = ahead_tokens
        self._logprobs_tokens = max(PROMPT_LOGPROBS_CHUNK, whole_tokens)

    def step(self, step: StepDemands) -> Estimate:
        """Estimate the memory of a step while it runs, and while prompts join the rows."""
        if not (num_all := len(step.rows) + len(step.prompts)):
            return Estimate()
        kept = num_all * self.vocab_size * (PENALTY_BYTES + BIAS_BYTES)
        kept += sum(one.vision_bytes for one in step.prompts)
        num_draws = len(step.rows) * self.models[0].width
        logprobs_tokens = self._logprobs_tokens if any(one.prompt_logprobs for one in step.prompts) else 0
        growth = forward = logits = 0
        for model in self.models:
            kept += self._kept_bytes(model, step)
            growth = max(growth, self._growth_bytes(model, step))
            forward = max(forward, self._forward_bytes(model, step))
            logits = max(logits, model.logits_bytes(len(step.rows), model.width))
            logits = max(logits, model.logits_bytes(1, logprobs_tokens))
        num_arrays = max(ALL_NEEDS.num_arrays if step.rows else 0.0, LIKELIHOOD_ARRAYS)
        for_sampling = sampling_bytes(max(num_draws, logprobs_tokens), num_arrays, self.vocab_size)
        working = max(forward, logits + for_sampling)
        # No operation of sampling takes more than half of what a portion does; half of a growth is its keys.
        looking = max((one.vision_bytes for one in step.prompts), default=0)
        return Estimate(kept, growth, working, max(forward, for_sampling // 2, growth // 2, looking))

    def full(self, rows: SequenceOf[Demand], prompts: SequenceOf[Demand]) -> Estimate:
        """Estimate the memory of these rows and prompts once all prompts are computed to their end."""
        return self.step(StepDemands(rows, prompts, (), self.chunk_tokens, self.chunk_tokens))

    def _kept_bytes(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the bytes of a model's caches."""
        footprint, rows, joined = model.footprint, step.rows, step.joined
        kept = len(rows) * (footprint.trace_bytes + model.width * footprint.trace_token_bytes)
        for num_columns, window_cells in self._apart(model, step):
            kept += footprint.token_bytes * num_columns + footprint.fixed_bytes
            kept += footprint.window_bytes(window_cells)
        if not model.sharing or not joined:
            return kept
        kept += footprint.token_bytes * self._most_cells(model, step) + len(joined) * footprint.fixed_bytes
        most = self._most_columns(model, step)
        # Until a prompt joins, it has windows for its chunks.
        own = [footprint.window_bytes(one.window_columns(most, step.widest_chunk)) for one in step.complete]
        return kept + max(
            footprint.window_bytes(self._window_cells(model, step, step.complete)),
            footprint.window_bytes(self._window_cells(model, step, ())) + sum(own),
        )

    def _growth_bytes(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the bytes that one growing layer takes. Prompts grow one after another, and so do models."""
        apart = [model.footprint.growth_bytes(*each) for each in self._apart(model, step)]
        if not model.sharing:
            return sum(apart)
        window_cells = self._window_cells(model, step, step.complete)
        return max([model.footprint.growth_bytes(self._most_cells(model, step), window_cells), *apart])

    def _window_cells(self, model: ModelMemory, step: StepDemands, joining: SequenceOf[Demand]) -> Cells:
        """Return the slots times columns of the windows that rows share, once these prompts joined them."""
        if model is self.models[0] and (rows := step.members):
            lengths = [one.num_tokens for one in joining]
            return lambda window: rows.window_cells(window, lengths, model.width + STEADY_TOKENS)
        num_slots, most = max_slots(len(step.rows) + len(joining)), self._most_columns(model, step)
        return lambda window: num_slots * window_columns(most, window, model.width)

    def _forward_bytes(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the bytes of a step's largest forward pass, of its rows or of a chunk."""
        num_rows, width = len(step.rows), model.width
        seen = width * self.num_cells(model, step.rows)
        if model is self.models[0]:
            longest, chunk = max((one.num_tokens for one in step.prompts), default=0), step.chunk_tokens
        else:
            # Draft prefill takes the text of rows.
            longest, chunk = model.num_ids(step.longest), self.chunk_tokens
        num_fed = min(chunk, longest)
        return max(
            model.footprint.forward_bytes(num_rows * width, seen),
            model.footprint.forward_bytes(num_fed, num_fed * (longest + self._ahead_tokens)),
        )

    def _most_columns(self, model: ModelMemory, step: StepDemands) -> int:
        return model.num_ids(step.longest) + self._ahead_tokens + SLACK_TOKENS

    def _apart(self, model: ModelMemory, step: StepDemands) -> list[tuple[int, Cells]]:
        """Return the columns of the caches that share no buffers, of full attention and of windows."""
        prompts = [] if model.sharing else list(step.complete)
        if model is self.models[0]:
            # Their draft prefill has not begun; what it takes is counted by _draft_prefill_bytes().
            prompts += step.others
        apart = [(one, self.prompt_columns(model, one.num_tokens)) for one in prompts]
        if not model.sharing:
            apart += [(one, self._row_columns(model, one.num_tokens)) for one in step.rows]
        return [(columns, one.window_columns(columns, step.widest_chunk)) for one, columns in apart]

    def _most_cells(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the most cells that rows take that share buffers, and prompts while they join them."""
        if not step.complete:
            return self.num_cells(model, step.rows)
        own = [self.prompt_columns(model, one.num_tokens) for one in step.complete]
        # They join one by one. Of those that have not yet, the rows' buffers later take at least what each
        # has now, but for what is to spare in its own.
        later = GROWTH_TOKENS * (len(own) - 1)
        return max(self.num_cells(model, step.rows) + sum(own), self.num_cells(model, step.joined) + later)

    def num_cells(self, model: ModelMemory, rows: SequenceOf[Demand]) -> int:
        """Return the most cells, slots times columns, that rows take in the buffers that they share."""
        lengths = [one.num_tokens for one in rows]
        columns = [self._row_columns(model, length) for length in lengths]
        # How many ids a text has less than it may have is not known if it is translated.
        is_known = model.ids_per_token == 1
        spans = [
            (length - 1 if is_known else 0, model.num_ids(length) + self._ahead_tokens) for length in lengths
        ]
        return count_cells(spans, columns, model.sharing.first_limit)

    def _row_columns(self, model: ModelMemory, length: int) -> int:
        columns = model.num_ids(length) + self._ahead_tokens
        return round_columns(columns) if model.sharing else columns + GROWTH_TOKENS

    def prompt_columns(self, model: ModelMemory, length: int) -> int:
        """Return the most columns of the own buffers of a prompt of this length, before it joins the rows."""
        # A buffer fed in odd chunks may end up to one growth step beyond what it has to hold.
        return model.num_ids(length) + self._ahead_tokens + GROWTH_TOKENS
