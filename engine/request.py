"""Define the data that the server and the engine exchange: requests, events, errors, status and counts.

It crosses between threads, so it is plain and frozen. It imports no MLX, so that the server can use it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from drafters.base import Frame as Frame
from drafters.base import SignedLines as SignedLines
from drafters.base import View as View
from engine.embedding_request import SPECIAL as SPECIAL
from engine.embedding_request import Dense as Dense
from engine.embedding_request import Embedded as Embedded
from engine.embedding_request import EmbeddingInfo as EmbeddingInfo
from engine.embedding_request import EmbeddingInput as EmbeddingInput
from engine.embedding_request import EmbeddingRequest as EmbeddingRequest
from engine.embedding_request import Pooling as Pooling
from engine.embedding_request import Purpose as Purpose
from engine.embedding_request import Recipe as Recipe

FinishReason = Literal["stop", "length"]
PromptEnd = Literal["answer", "messages", "final_message"]
"""Where a conversation's prompt ends: where the answer begins, after the messages, or within the last one,
which the answer continues."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request's tokens are chosen. A token's noise depends only on seed and absolute position.

    seed: any integer; its lowest 64 bits count.
    temperature: >= 0; 0 chooses the likeliest token.
    top_p: in [0, 1]; keep the smallest set of likeliest tokens that reaches this sum; 1 means no limit.
    top_k: keep this many of the likeliest tokens; 0, or at least the vocabulary's size, means no limit.
    min_p: in [0, 1]; keep tokens at least this many times as probable as the likeliest; 0 means no limit.
        The three filters apply to the distribution at temperature: top_k first, then top_p, then min_p.
    presence_penalty: subtracted from the logit of each token that occurs in the answer so far.
    frequency_penalty: subtracted from a token's logit once per occurrence in the answer so far.
    repetition_penalty: > 0; divides positive logits, and multiplies the others, of each token that occurs in
        the prompt or the answer so far; 1 means no penalty.
    logit_bias: (token id, number added to its logit) pairs.
    allowed: token ids that may be chosen, if a grammar allows them; empty for all.
    ignores_eos: whether the model's end-of-answer tokens are never chosen, as long as there is any other.
    min_tokens: the first min_tokens tokens are none that ends the answer, as long as there is any other.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    ignores_eos: bool = False
    min_tokens: int = 0

    @property
    def has_bias(self) -> bool:
        """Whether any token's logit is changed by a constant."""
        return bool(self.logit_bias or self.allowed or self.ignores_eos or self.min_tokens)


HeadKind = Literal["mtp", "dflash"]
"""What drafts from a model's hidden states: an MTP head, or a DFlash drafter."""

DraftType = Literal[
    "auto", "none", "ngram-simple", "ngram-mod", "suffix", "draft-model", "mtp", "dflash", "wedlm"
]


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """One request's settings for drafting.

    type: which drafters to use; None for the server's setting.
    max_tokens: maximum tokens of one draft, if lower than the server's; 0 for no drafts, None for the
        server's.
    """

    type: DraftType | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """Streaming decoding of one request by a WeDLM model, which may answer differently than plain decoding.

    mask_token: ModelInfo.mask_token_id. window_size: tokens and holes right of the settled text, >= 1.
    entropy_threshold: a hole is filled whose entropy, in nats, is less; None to fill one at a time.
    pos_penalty_factor: added to the entropy for each position after the first hole, >= 0.
    has_anchor: whether the first hole is always filled, with the token that plain decoding would choose.
    """

    mask_token: int
    window_size: int = 16
    entropy_threshold: float | None = 0.3
    pos_penalty_factor: float = 0.01
    has_anchor: bool = False


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """A limit for the reasoning of an answer: at num_tokens, the marker that ends it is forced.

    start, end: the tokens of the markers; end has at least one. is_open: the prompt has opened the reasoning.
    is_repeated: the answer may have several reasoning sections, which share the budget.
    """

    num_tokens: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    is_open: bool = False
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer must match. Each token is chosen among those that the grammar allows.

    kind: what text is: a JSON schema, a regular expression, or a grammar in Lark's syntax, as llguidance
        reads them; or any, for a budget alone.
    thinking: the budget of the reasoning; None for no limit.
    compiled: what Engine.compile_grammar() made of it; None before. Only the engine reads it.
    """

    kind: Literal["json_schema", "regex", "lark", "any"]
    text: str
    thinking: ThinkingBudget | None = None
    compiled: Any = field(default=None, compare=False, repr=False)


class UnbrokenTextError(Exception):
    """A text has more than so many characters without a place where it can be cut."""


class GrammarError(ValueError):
    """A grammar cannot be used; the message says which part of it is at fault."""


class GrammarCostError(GrammarError):
    """An answer exceeds what its grammar may cost. The message is a phrase that follows the field's name."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. The server has validated all fields; the engine does not check them again.

    id: unique among the requests that have not ended; Engine.cancel() takes it.
    prompt: (n,) token ids, 1 <= n < ModelInfo.context_tokens.
    max_tokens: maximum tokens of the answer, >= 1; n + max_tokens <= ModelInfo.context_tokens.
    sampling: how tokens are chosen.
    stop: strings that end the answer and are not part of it. They are not looked for in the first
        sampling.min_tokens tokens.
    stop_tokens: token ids that end the answer, beside the model's; they have no text.
    draft: settings for drafting.
    prediction: token ids of the answer that the client expects; empty if it gave none.
    views: what the prompt shows, as an answer would have it, for drafters to copy from. May grow at its end
        while the request runs.
    tenant: whose request this is. If the server separates tenants, no tenant's text is drafted for another.
    grammar: what the answer must match; None for no constraint.
    top_logprobs: number of likeliest tokens to report at each position of the answer, besides the log
        probability of the token itself. 0 for that alone, None for no log probabilities.
    prompt_logprobs: whether to report the same for the prompt's tokens, in deltas before the answer's.
    reports_progress: whether to report how far the prompt is, in deltas before the answer's.
    reports_usage: whether each delta reports the counts and times so far.
    reports_origins: whether each delta reports which drafter its text is from.
    streaming: how several tokens are filled in at once; None for plain decoding, with or without drafts.
    head_tokens: leading tokens of the prompt before what the user says first: system text and tools. 0 if not
        known.
    loop_guard_tokens: the answer ends if so many of its last tokens only repeat one text; 0 for never. See
        loop_guard.py.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    draft: DraftChoice = DraftChoice()
    prediction: tuple[int, ...] = ()
    views: Sequence[View] = ()
    tenant: str = ""
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    stop_tokens: tuple[int, ...] = ()
    reports_progress: bool = False
    reports_usage: bool = False
    reports_origins: bool = False
    streaming: Streaming | None = None
    loop_guard_tokens: int = 0
    head_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DraftingReport:
    """What drafting did for one sequence.

    num_drafted, num_accepted: drafted tokens that the target model checked, and those it accepted.
    num_forwards: forward passes that decoding the answer took, without prefill.
    num_fed: tokens fed in them.
    by_source: (drafter, drafted tokens, accepted tokens) for each drafter that drafted.
    by_position: (drafted, accepted) for the first token of all drafts, for the second, and so on.
    accepted_prediction, rejected_prediction: checked tokens from the client's prediction.
    origins: (source, number of tokens) for each run of the answer, in order. source is the drafter for
        accepted tokens and "model" for all others.
    drafter_s: seconds that drafters, the draft model included, took while the answer was decoded.
    drafter_open_s: seconds that they took to read the prompt, before the first token.
    strategy: how the draft model's drafts were translated; None if the draft model did not read the prompt.
    translation: number of drafts by the result of their translation; keys as in TranslationCounts, empty if
        none were translated.
    charged_s, charged_plain_s: seconds of decoding that its slowdown budget was charged, and what its tokens
        would have taken in plain steps.
    gate_score: how repetitive the prompt is; None if it was not scored.
    gate_decision: which drafters were chosen: "lookup", "draft-model", "wedlm", or "plain" for none.
    gate_reason: why, in words.
    undrafted: (reason, number of plans) for each reason to decode without a draft; see draft_stats.py.
    why_undrafted: in words, why most steps had no draft; empty if most had one, or if nothing may draft.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    num_forwards: int = 0
    num_fed: int = 0
    by_source: tuple[tuple[str, int, int], ...] = ()
    by_position: tuple[tuple[int, int], ...] = ()
    accepted_prediction: int = 0
    rejected_prediction: int = 0
    origins: tuple[tuple[str, int], ...] = ()
    drafter_s: float = 0.0
    drafter_open_s: float = 0.0
    strategy: str | None = None
    translation: Mapping[str, int] = field(default_factory=dict)
    charged_s: float = 0.0
    charged_plain_s: float = 0.0
    gate_score: float | None = None
    gate_decision: str = "plain"
    gate_reason: str = ""
    undrafted: tuple[tuple[str, int], ...] = ()
    why_undrafted: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and times of one sequence. Times are in seconds since its submission.

    num_prompt_tokens: tokens of the prompt.
    num_cached_tokens: prompt tokens that were not computed because their keys and values were cached.
    num_completion_tokens: tokens of the answer, an end-of-answer token included.
    queue_s: until admission. prefill_s: until prefill was complete. first_token_s: until the first token was
        committed. total_s: until the end. If the sequence ended before one of these, its end counts.
    drafting: what drafting did. streaming: how the answer was streamed; None for plain decoding.
    is_loop: whether the answer was ended because it only repeated itself.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    drafting: DraftingReport = DraftingReport()
    streaming: Streaming | None = None
    is_loop: bool = False

    @property
    def decode_tokens_per_s(self) -> float:
        """The tokens after the first, per second since the first; 0 if there were none."""
        spent_s = self.total_s - self.first_token_s
        return (
            (self.num_completion_tokens - 1) / spent_s
            if self.num_completion_tokens > 1 and spent_s > 0
            else 0.0
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log probability, at temperature 1, before penalties, bias, grammar and filters.

    token_bytes: the bytes of the token; one character may take several tokens.
    logprob: natural logarithm; None for the first token of a prompt.
    top: (token id, token bytes, logprob) of the likeliest tokens at this position, the likeliest first.
    """

    token: int
    token_bytes: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt is. Its last token is computed with the first token of the answer.

    num_tokens, num_cached, num_processed: tokens of the prompt, those that were cached, and those that are
        done, the cached ones included. taken_s: seconds since it was admitted.
    """

    num_tokens: int
    num_cached: int
    num_processed: int
    taken_s: float


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed text: whole characters, and never any part of a stop string.

    text: empty only if there are logprobs or progress.
    logprobs: of the tokens committed with this text; empty unless the request asks for them.
    is_prompt: whether the logprobs are of the prompt's next tokens instead; the text is empty then.
    progress, usage: reported if the request asks for them.
    origins: (text, source) of each run of tokens from one source, if the request asks for them. The texts are
        the delta's text; the source is a drafter, or "model" if no drafter drafted the tokens.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    is_prompt: bool = False
    progress: PromptProgress | None = None
    usage: Usage | None = None
    origins: tuple[tuple[str, str], ...] = ()
    is_terminal: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The terminal event of a sequence that succeeded.

    reason: "stop" after an end-of-answer token, a stop string or a loop, "length" after max_tokens tokens.
    tokens: ids of the whole answer, with the end-of-answer token if there was one.
    stop: the stop string that ended the answer; None if none did.
    """

    reason: FinishReason
    usage: Usage
    tokens: tuple[int, ...] = ()
    stop: str | None = None
    is_terminal: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Failed:
    """The terminal event of a sequence that did not succeed.

    kind: "request" if only this request failed; "grammar" if its grammar took too much computation; "engine"
        if the engine is dead; "draining" if the engine stopped before the request was admitted or finished;
        "cancelled" after Engine.cancel().
    message: why, in words for the client; for "grammar" a phrase that follows the field's name.
    usage: up to the failure.
    """

    kind: Literal["request", "grammar", "engine", "draining", "cancelled"]
    message: str
    usage: Usage = field(default_factory=Usage)
    is_terminal: ClassVar[bool] = True


EmbeddingSink = Callable[[Embedded | Failed], None]
"""Receives the terminal event of a request for embeddings, on the engine's thread: it must not block and must
not raise."""

Event = Delta | Finished | Failed
Sink = Callable[[Event], None]
"""Receives a sequence's events, on the engine's thread: it must not block and must not raise."""


RETRY_AFTER_S = 1.0
"""Seconds after which to retry if there is no better estimate."""


class EngineError(Exception):
    """The engine refuses a request.

    code: why: "engine_dead", "queue_full" or "draining".
    retry_after_s: seconds after which a retry may succeed.
    """

    def __init__(
        self,
        code: Literal["engine_dead", "queue_full", "draining"],
        message: str,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class SharedTableError(Exception):
    """The shared n-gram table cannot be shown, saved or loaded; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """How memory limits the context to less than the model's own.

    room_bytes: memory for everything but weights.
    max_tokens: tokens of the longest sequence that fits.
    sequence_bytes: memory that such a sequence takes, with what its computation needs.
    token_bytes: memory that each further token would take.
    """

    room_bytes: int
    max_tokens: int
    sequence_bytes: int
    token_bytes: float

    def bytes_of(self, num_tokens: int) -> int:
        """Estimate the memory that a longer sequence would take."""
        return self.sequence_bytes + round((num_tokens - self.max_tokens) * self.token_bytes)


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The sampling of requests that do not say otherwise. None: the API's own default."""

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
    """Where answers end whose requests set no limit. None: as the settings say.

    loop_guard_tokens: see GenerationRequest.
    """

    max_tokens: int | None = None
    loop_guard_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, as the server shows it.

    name: as the API shows it. architecture: mlx-lm's name of the model type; "unknown" if not configured.
    context_tokens: maximum tokens of prompt and answer together.
    vocab_size: number of token ids. num_parameters: numbers that all weights stand for.
    weight_bytes: memory that the weights take.
    dtype: of the first weight array, or the bits if quantized, for example "bfloat16" or "4-bit".
    device: what computes, for example "Apple M4 Pro (Metal)". memory_bytes: its memory; 0 if unknown.
    loaded_s: seconds that loading took.
    fingerprint: equal for equal weights and configuration under the same version of MLX.
    memory_limit: how memory limits context_tokens; None if it does not.
    draft_strategy: how the draft model's drafts are translated; None without a draft model.
    head: what drafts from its hidden states; None if nothing does. head_fault: why a head of its does not.
    batching: what the rows of a batch share. exact: the widths that --exact found; empty without it.
    sampling_defaults, answer_limits: what its makers recommend.
    mask_token_id: the token at which a WeDLM model predicts what belongs there; None for any other model.
    can_stream: whether it can decode by streaming.
    ranks: what each machine holds, for people; empty if the model is on one.
    purpose: what it is for. embedding: how it makes vectors or scores; None for a model that generates.
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
    head_fault: str = ""
    batching: str = ""
    exact: str = ""
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    answer_limits: AnswerLimits = AnswerLimits()
    mask_token_id: int | None = None
    can_stream: bool = False
    ranks: tuple[str, ...] = ()
    purpose: Purpose = "generate"
    embedding: EmbeddingInfo | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for /health.

    state: "stalled" while there are requests but there has been no progress for stall_seconds.
    num_running: requests that have been admitted. num_waiting: requests in the queue.
    fault: why the engine is dead or stalled; None if it is neither.
    retry_after_s: seconds after which a request that is refused now may be accepted.
    """

    state: Literal["loading", "ready", "draining", "stalled", "dead"]
    num_running: int
    num_waiting: int
    fault: str | None = None
    retry_after_s: float = RETRY_AFTER_S


LoadFault = Literal["unknown", "not_loadable", "too_large", "unreachable", "no_space", "draining"]


class ModelLoadError(Exception):
    """A model that a request asks for cannot be loaded; the message is one line that says why.

    kind: unknown (no such model), not_loadable (its files are at fault), too_large (for the memory of all
    models), unreachable (the hub, now), no_space (the disk is full), or draining (the server is stopping).
    """

    def __init__(self, kind: LoadFault, message: str) -> None:
        super().__init__(message)
        self.kind: LoadFault = kind


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One of the models that requests may ask for.

    size_bytes: of its weights. context_tokens: the longest text, as far as it is known before it was loaded.
    progress: the loaded share of its weights, 0 to 1; None unless it is loading.
    phase: what it is at while it is loading, in words.
    fault: why it cannot be loaded, as far as its files show it or the last attempt did; None otherwise.
    num_running, num_waiting: its requests.
    num_loads, num_unloads: since the server started.
    info: as loaded. can_call, can_think, can_infill: whether it has tools, reasoning, and tokens to fill in
        text with. None if it never was loaded.
    idle_left_s: seconds after which it is unloaded if it gets no request; None if it is not, or not loaded.
    purpose: what it is for.
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
    num_unloads: int = 0
    info: ModelInfo | None = None
    can_call: bool | None = None
    can_think: bool | None = None
    can_infill: bool | None = None
    idle_left_s: float | None = None
    purpose: Purpose = "generate"


GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, in seconds, of the buckets for inter-token gaps."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What the engine has counted since it started, and the memory that MLX holds.

    num_failed_steps, num_preemptions, num_plain_probes, num_stalls: see EngineStats.
    gaps_up_to: cumulative counts of the times between consecutive tokens of a sequence: gaps_up_to[i] counts
        those of at most GAP_BOUNDS_S[i], and the last entry counts all. Tokens of one step are committed
        together, so all but the first have a gap of 0.
    gap_sum_s: sum of all gaps, in seconds.
    active_bytes: memory in use now. peak_bytes: the maximum ever in use. cache_bytes: freed memory that MLX
        keeps for reuse.
    station_s: seconds of the engine's thread by station; see engine/stations.py.
    by_rank: values of each machine that has a part of the model, by the metric's name and the rank.
    num_embedded, num_embedded_tokens: texts and pairs of which the vector or score is made, and their tokens.
    num_to_embed: those that were asked for and are not made yet.
    """

    num_failed_steps: int = 0
    num_preemptions: int = 0
    num_plain_probes: int = 0
    num_stalls: int = 0
    gaps_up_to: tuple[int, ...] = (0,) * (len(GAP_BOUNDS_S) + 1)
    gap_sum_s: float = 0.0
    active_bytes: int = 0
    peak_bytes: int = 0
    cache_bytes: int = 0
    station_s: Mapping[str, float] = field(default_factory=dict)
    by_rank: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    num_embedded: int = 0
    num_embedded_tokens: int = 0
    num_to_embed: int = 0
