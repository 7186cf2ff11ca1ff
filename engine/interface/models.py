"""Define how the engine describes its models, loaded or not, and a request's lease on a loaded one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from reprise.engine.interface.embeddings import EmbeddingInfo, Purpose
from reprise.engine.interface.images import VisionInfo

Progress = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""

StartProgress = Callable[[str, float], None]
"""Called with the name of a start-up stage and the share of it that is done, 0 to 1."""

HeadKind = Literal["mtp", "eagle3", "dflash"]
"""The kind of a drafter of hidden states: an MTP head, an EAGLE-3 head, or a DFlash drafter."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """How memory limits the context to less than the model's own.

    room_bytes: memory besides weights. max_tokens: the longest sequence that fits.
    sequence_bytes: memory of such a sequence, including its computation.
    token_bytes: memory that each token beyond max_tokens would take.
    """

    room_bytes: int
    max_tokens: int
    sequence_bytes: int
    token_bytes: float

    def bytes_of(self, num_tokens: int) -> int:
        """Estimate the bytes that a sequence of num_tokens, more than max_tokens, would take."""
        return self.sequence_bytes + round((num_tokens - self.max_tokens) * self.token_bytes)


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The model's defaults for requests that do not set these fields. None: the API's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def known(self) -> dict[str, float]:
        """The fields that are set, by name."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of answers to requests that set none; see GenerationRequest. None: as the settings say."""

    max_tokens: int | None = None
    loop_guard_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, as the server shows it.

    architecture: mlx-lm's name of the model type; "unknown" if not configured.
    context_tokens: maximum tokens of prompt and answer together.
    num_parameters: packed weights count unpacked.
    dtype: of the first weight array, or its bits if quantized, such as "bfloat16" or "4-bit".
    device: what computes, for example "Apple M4 Pro (Metal)". memory_bytes: that device's; 0 if unknown.
    loaded_s: seconds that loading took.
    fingerprint: equal for equal weights and configuration under the same version of MLX.
    draft_strategy: how the draft model's drafts are translated.
    head: the head that drafts for it. head_described: its kind with an article, for people.
    head_fault: why a head that it has does not draft.
    batching: what the rows of a batch share. exact: the widths that --exact found.
    sampling_defaults, answer_limits: what the model's makers recommend.
    mask_token_id: the token at which a WeDLM model predicts.
    can_decode_windows: whether it can decode in windows (WeDLM).
    ranks: what each machine holds, for people; empty if the model is on one.
    embedding: how it makes vectors or scores. vision: how it sees images. None if it does not.
    weights_note: how the weights' format affects drafting on the device, as a sentence; may be empty.
    is_tried: whether all trials of what it can do are done. Until then nothing is drafted.
    """

    name: str
    architecture: str
    context_tokens: int
    vocab_size: int
    num_layers: int
    num_parameters: int
    weight_bytes: int
    dtype: str
    device: str
    memory_bytes: int
    loaded_s: float
    fingerprint: str = ""
    memory_limit: MemoryLimit | None = None
    draft_strategy: str | None = None
    head: HeadKind | None = None
    head_described: str = ""
    head_fault: str = ""
    batching: str = ""
    exact: str = ""
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    answer_limits: AnswerLimits = AnswerLimits()
    mask_token_id: int | None = None
    can_decode_windows: bool = False
    ranks: tuple[str, ...] = ()
    purpose: Purpose = "generate"
    embedding: EmbeddingInfo | None = None
    vision: VisionInfo | None = None
    weights_note: str = ""
    is_tried: bool = True

    @property
    def short_size(self) -> str:
        """The number of parameters as people write it, such as 1.5B."""
        for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
            if self.num_parameters >= size:
                return f"{self.num_parameters / size:.1f}{unit}"
        return str(self.num_parameters)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One of the models that requests may ask for. Before its first load, facts come from its files.

    size_bytes: bytes of its weights. context_tokens: the longest text.
    progress: the loaded share of its weights, 0 to 1. phase: the present stage of loading, in words. Both are
        None unless it is loading.
    fault: why it cannot be loaded, judged by its files or by the last attempt.
    num_running, num_waiting: its requests that are admitted, and that wait.
    num_loads: how often it was loaded since the server started.
    info: as loaded. can_call, can_think, can_infill: whether it has tools, reasoning, and fill-in-the-middle
        tokens. None if it never was loaded.
    idle_left_s: seconds after which it is unloaded if it gets no request; None if it stays or is not loaded.
    embedding, vision: see ModelInfo; before the first load without special tokens.
    tool_format: the name of its format of tool calls. thinking_switches: see Markers.
    """

    name: str
    state: Literal["unloaded", "loading", "loaded"]
    size_bytes: int
    context_tokens: int | None
    progress: float | None = None
    phase: str | None = None
    fault: str | None = None
    num_running: int = 0
    num_waiting: int = 0
    num_loads: int = 0
    info: ModelInfo | None = None
    can_call: bool | None = None
    can_think: bool | None = None
    can_infill: bool | None = None
    idle_left_s: float | None = None
    purpose: Purpose = "generate"
    embedding: EmbeddingInfo | None = None
    tool_format: str | None = None
    thinking_switches: tuple[str, ...] = ()
    vision: VisionInfo | None = None


class ModelUse:
    """A request's lease on a loaded model, until end().

    keep_s: seconds for which the model stays loaded after that without other requests; None for the
        settings' value, below 0 for ever.
    """

    def __init__(self, engine: Any, end: Callable[["ModelUse"], None]) -> None:
        # One that generates or one that embeds, as the request found out before.
        self.engine = engine
        self.keep_s: float | None = None
        self._end: Callable[[ModelUse], None] | None = end

    def end(self) -> None:
        """End the lease; further calls do nothing. Any thread may call it."""
        end, self._end = self._end, None
        if end:
            end(self)
