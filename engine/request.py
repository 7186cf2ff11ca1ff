"""What crosses the thread line: a request on its way in, events on their way out.

Plain frozen data and no MLX, so that the server and tests can import it anywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request's tokens are chosen. Every token's noise has the key (seed, absolute position).

    temperature: >= 0; 0 takes the likeliest token.
    top_k: 0 means no limit, as does anything from the vocabulary's size on.
    top_p, min_p: in [0, 1]; 1 and 0 mean no limit. Filters apply to the distribution at temperature.
    presence_penalty, frequency_penalty: subtracted for tokens generated so far (as OpenAI does).
    repetition_penalty: > 0; divides or multiplies the logits of tokens in prompt and answer (1 = off).
    logit_bias: (token id, added logit) pairs.
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


DraftType = Literal["auto", "none", "ngram-simple", "ngram-mod", "suffix", "draft-model"]


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """What one request says about drafting.

    type: None for the server's own setting. max_tokens: most tokens of one draft; None for the server's.
    """

    type: DraftType | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must be; every token of it is chosen among those that keep to this.

    kind: what text is: a JSON schema, a regular expression, or a grammar in Lark's syntax, as llguidance
        reads it.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str


class GrammarError(ValueError):
    """A grammar cannot be used; the message names what in it is at fault."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. What it holds has been validated; the engine trusts it.

    id: unique among live requests; cancel() takes it.
    prompt: (n,) token ids, 1 <= n < context.
    max_tokens: >= 1, and n + max_tokens <= context.
    stop: strings that end the answer and are not part of it.
    draft: how to draft. prediction: token ids of the answer that the client expects; often none.
    tenant: whose request it is; what others said is never drafted for it where tenants are kept apart.
    grammar: what the answer must be.
    top_logprobs: how many alternatives to each token to tell, with its own log probability; None for none of
        it. prompt_logprobs: the same of the prompt's tokens, in a first delta without text.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    draft: DraftChoice = DraftChoice()
    prediction: tuple[int, ...] = ()
    tenant: str = ""
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class DraftingReport:
    """What drafting did for one sequence.

    num_forwards: forwards that its tokens took, prefill not counted.
    by_source: (drafter, drafted tokens, accepted tokens) for each that drafted.
    by_position: (drafted, accepted) for the first token of all drafts, the second, and so on.
    accepted_prediction, rejected_prediction: tokens drafted from the client's prediction.
    origins: (source, number of tokens) of the answer in order; "model" for what no draft foretold.
    drafter_s: seconds that drafters, the draft model included, took while it was decoded. drafter_open_s:
        those before its first token, when they read the prompt.
    strategy: how the draft model's drafts were translated, None if it did not read the prompt. translation:
        what became of them, by the names of TranslationCounts.
    gate_score: repetition of the prompt, None if it was not asked. gate_decision: "lookup", "draft-model"
        or "plain". gate_reason: why, in words.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    num_forwards: int = 0
    by_source: tuple[tuple[str, int, int], ...] = ()
    by_position: tuple[tuple[int, int], ...] = ()
    accepted_prediction: int = 0
    rejected_prediction: int = 0
    origins: tuple[tuple[str, int], ...] = ()
    drafter_s: float = 0.0
    drafter_open_s: float = 0.0
    strategy: str | None = None
    translation: Mapping[str, int] = field(default_factory=dict)
    gate_score: float | None = None
    gate_decision: str = "plain"
    gate_reason: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and times of one sequence, from submission to its end.

    num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
    queue_s, prefill_s, first_token_s: from submission to admission, to the end of the prompt's computation,
        and to the first committed token.
    total_s: from submission to the end.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    drafting: DraftingReport = DraftingReport()

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first one over the time they took; 0 if there were none."""
        spent_s = self.total_s - self.first_token_s
        return (
            (self.num_completion_tokens - 1) / spent_s
            if self.num_completion_tokens > 1 and spent_s > 0
            else 0.0
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, and how likely it was: log of its probability at temperature 1, as the model itself says.

    logprob: None for the first token of a prompt.
    piece: its own bytes; several tokens may make one character.
    top: (token id, piece, logprob) of the likeliest tokens at its place, the likeliest first.
    """

    token: int
    token_bytes: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed text, never part of a character, never part of a stop string.

    logprobs: of the tokens that brought it, where the request wants them. Without text only to bring those.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    is_terminal: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The good end of a sequence.

    tokens: ids of the whole answer, with the end-of-answer token if it came.
    stop: the stop string that ended it, if one did.
    """

    reason: FinishReason
    usage: Usage
    tokens: tuple[int, ...] = ()
    stop: str | None = None
    is_terminal: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Failed:
    """The bad end of a sequence.

    kind: "request" when this request failed and others go on; "engine" when the engine is dead;
    "draining" when it was still waiting as the engine stopped; "cancelled" when it was told to end.
    """

    kind: Literal["request", "engine", "draining", "cancelled"]
    message: str
    usage: Usage = field(default_factory=Usage)
    is_terminal: ClassVar[bool] = True


Event = Delta | Finished | Failed
Sink = Callable[[Event], None]
"""Takes a sequence's events, on the engine's thread: must not block and must not raise."""


RETRY_AFTER_S = 1.0
"""When to try again where nothing says it better."""


class EngineError(Exception):
    """The engine cannot take a request; code says why.

    code: "engine_dead", "queue_full" or "draining".
    retry_after_s: when it may be worth trying again.
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
    """What drafters remember across requests cannot be shown, saved or loaded; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Why a context is shorter than the model's own: what memory there is for a row, and what rows take.

    room_bytes: for everything but weights. most_tokens: of a sequence for which there is room; it takes
    sequence_bytes with all that computing it needs, and every further token takes token_bytes.
    """

    room_bytes: int
    max_tokens: int
    sequence_bytes: int
    token_bytes: float

    def bytes_of(self, num_tokens: int) -> int:
        """What a longer sequence would take."""
        return self.sequence_bytes + round((num_tokens - self.max_tokens) * self.token_bytes)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the server tells people about the loaded model.

    memory_limit: what keeps the context from being as long as the model's own, if memory does.
    draft_strategy: how drafts of the draft model are translated, None if there is none.
    fingerprint: the same for the same weights and configuration, computed by the same version of MLX.
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


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for /health.

    state: "stalled" while requests wait and nothing has gone on for stall_seconds.
    fault: why it is dead or stalled.
    retry_after_s: when a request that is refused now may be worth trying again.
    """

    state: Literal["loading", "ready", "draining", "stalled", "dead"]
    num_running: int
    num_waiting: int
    fault: str | None = None
    retry_after_s: float = RETRY_AFTER_S


GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets that times between tokens are counted in."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What the engine has counted since its start, and the memory that MLX holds.

    gaps_up_to: how many times between two tokens of a sequence were at most GAP_BOUNDS_S[i], and last all of
        them. Tokens of one step come together, so all but its first have a gap of 0.
    gap_sum_s: those times added up.
    active_bytes, peak_bytes, cache_bytes: in use now, the most ever in use, and kept to be used again.
    """

    num_failed_steps: int = 0
    num_preemptions: int = 0
    num_stalls: int = 0
    gaps_up_to: tuple[int, ...] = (0,) * (len(GAP_BOUNDS_S) + 1)
    gap_sum_s: float = 0.0
    active_bytes: int = 0
    peak_bytes: int = 0
    cache_bytes: int = 0
