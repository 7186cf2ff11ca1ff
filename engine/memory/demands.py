"""The memory demands of sequences and steps, and the sizes of models on which demands depend."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.kv_cache.sliding_window import window_columns
from reprise.engine.memory.footprint import Cells, Footprint
from reprise.engine.sampling.portions import LIKELIHOOD_ARRAYS, Needs
from reprise.engine.vision.sight import Looking

PENALTY_BYTES = 16
BIAS_BYTES = 8
"""Bytes of a row's penalties and of its biases per token of the vocabulary. Penalties have two arrays, both
twice while they change; a row may have another bias for its first tokens."""


class ComputedPrompt(Protocol):
    """A prompt as far as it is computed. max_chunk_tokens: how many of its tokens the next step may feed."""

    max_chunk_tokens: int

    @property
    def num_computed(self) -> int:
        """The number of tokens that its caches hold."""

    @property
    def widest_chunk(self) -> int:
        """The most tokens of this prompt that a step has fed."""

    @property
    def caches(self) -> Caches:
        """The caches of this prompt alone."""

    @property
    def looking(self) -> Looking | None:
        """The images of the prompt; None if it has none."""


class Submitted(Protocol):
    """The time at which a sequence was submitted."""

    @property
    def submitted_at(self) -> float:
        """When the sequence was submitted, in seconds by time.perf_counter()."""


class RunningSequence(Protocol):
    """The facts about a sequence, admitted or about to be, that its memory depends on."""

    @property
    def request(self) -> GenerationRequest:
        """The request that the sequence answers."""

    @property
    def tokens(self) -> SequenceOf[int]:
        """The committed tokens: prompt and answer so far."""

    @property
    def prefill(self) -> ComputedPrompt:
        """The prompt as far as it is computed."""

    @property
    def timing(self) -> Submitted:
        """When the sequence was submitted."""

    @property
    def num_answered(self) -> int:
        """The number of committed tokens of the answer."""

    @property
    def num_to_prefill(self) -> int:
        """The number of tokens to compute before the sequence can decode."""


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
class SamplingMemory:
    """Memory that the sampling of one sequence takes.

    row_bytes: bytes kept for its row. num_arrays: arrays (vocabulary,) float32 that sampling a token takes.
    prompt_logprobs: whether log probabilities of the prompt are wanted.
    """

    row_bytes: int
    num_arrays: float
    prompt_logprobs: bool

    @classmethod
    def of(
        cls, needs: Needs, vocab_size: int, logprobs: bool = True, prompt_logprobs: bool = True
    ) -> "SamplingMemory":
        """Count the memory of sampling with these needs, and with log probabilities if they are wanted."""
        row_bytes = vocab_size * (PENALTY_BYTES * needs.penalties + BIAS_BYTES * needs.bias)
        num_arrays = max(needs.num_arrays, LIKELIHOOD_ARRAYS if logprobs else 0.0)
        return cls(row_bytes, num_arrays, prompt_logprobs)


@dataclass(frozen=True, slots=True)
class Demand:
    """One sequence's demand for memory.

    num_tokens: the sequence's length. sampling: the memory of sampling its tokens.
    vision_bytes: memory that its images take until they have been fed.
    windows: window -> columns of its own buffers of that window after the step, if they are known.
    """

    num_tokens: int
    sampling: SamplingMemory
    windows: Mapping[int, int] = field(default_factory=dict)
    vision_bytes: int = 0

    def window_columns(self, num_columns: int, widest_chunk: int) -> Cells:
        """Return a function from a window to the columns of the sequence's own buffers of that window.

        num_columns, widest_chunk: tokens, and the most fed at once, to estimate columns that are not known.
        """
        return lambda window: self.windows.get(window) or window_columns(num_columns, window, widest_chunk)


@dataclass(frozen=True)
class StepDemands:
    """A step's demand for memory.

    rows: the rows that decode. complete: prompts that the step completes, so that they join the rows.
    others: all other prompts, with as many tokens as their own caches hold after the step.
    chunk_tokens: maximum tokens of a chunk in this step. widest_chunk: maximum tokens of all chunks so far;
        buffers of sliding windows have room for it.
    members: the target model's rows as they are now, if this is its next step.
    """

    rows: SequenceOf[Demand]
    complete: SequenceOf[Demand]
    others: SequenceOf[Demand]
    chunk_tokens: int
    widest_chunk: int
    members: BatchedRows | None = None

    @cached_property
    def joined(self) -> list[Demand]:
        """The sequences that share buffers after the step."""
        return [*self.rows, *self.complete]

    @cached_property
    def prompts(self) -> list[Demand]:
        """All prompts, completed by the step or not."""
        return [*self.complete, *self.others]

    @cached_property
    def everyone(self) -> list[Demand]:
        """All rows and prompts."""
        return [*self.joined, *self.others]

    @cached_property
    def longest(self) -> int:
        """The length of the longest row after the step."""
        return max((one.num_tokens for one in self.joined), default=0)

    @cached_property
    def has_prompt_logprobs(self) -> bool:
        """Whether log probabilities of any prompt are wanted."""
        return any(one.sampling.prompt_logprobs for one in self.prompts)
