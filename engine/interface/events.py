"""Define the engine's events: committed text, and how a sequence ended, with its counts and times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from reprise.engine.interface.embeddings import Embedded
from reprise.engine.interface.request import WindowSettings

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class DraftingReport:
    """Counts and times of the drafting for one sequence.

    num_drafted, num_accepted: drafted tokens that the target model checked, and those it accepted.
    num_forwards, num_fed: forward passes of decoding, prefill not counted, and the tokens fed in them.
    by_source: (drafter, drafted tokens, accepted tokens) for each drafter that drafted.
    by_position: (drafted, accepted) for the first token of all drafts, for the second, and so on.
    accepted_prediction, rejected_prediction: checked tokens from the client's prediction.
    origins: (source, number of tokens) for each run of the answer, in order. source is the drafter for
        accepted tokens and "model" for all others.
    drafter_s: seconds that drafters, the draft model included, took while the answer was decoded.
    drafter_open_s: seconds that drafters took to index the prompt.
    strategy: how the draft model's drafts were translated; None if it did not read the prompt.
    translation: number of drafts by the result of their translation; keys as in TranslationCounts.
    charged_s, charged_plain_s: seconds charged to the slowdown budget, and what plain decoding would have
        taken.
    gate_score: how repetitive the prompt is; None if it was not scored.
    gate_decision: which drafters were chosen: "lookup", "draft-model", "wedlm", or "plain" for none.
    undrafted: (reason, number of plans) for plans without a draft; see draft_stats.py.
    why_undrafted: why most steps had no draft; empty if most had one, or if nothing may draft.
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

    num_cached_tokens: prompt tokens that were not computed because their keys and values were cached.
        num_read_ahead_tokens: those of them that were computed while nothing else was to be done.
    num_completion_tokens: tokens of the answer, an end-of-answer token included.
    queue_s: until admission. prefill_s: until prefill was complete. first_token_s: until the first token was
        committed. total_s: until the end. A stage that was never reached has the time of the end.
    window_settings: None for plain decoding. is_loop: whether it ended because it only repeated itself.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_read_ahead_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    drafting: DraftingReport = DraftingReport()
    window_settings: WindowSettings | None = None
    is_loop: bool = False

    @property
    def decode_tokens_per_s(self) -> float:
        """Answer tokens after the first, per second since the first one; 0 if the answer has at most one."""
        num_later, spent_s = self.num_completion_tokens - 1, self.total_s - self.first_token_s
        return num_later / spent_s if num_later > 0 and spent_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log probability, at temperature 1, before penalties, bias, grammar and filters.

    logprob: natural logarithm; None for the first token of a prompt.
    top: (token id, token bytes, logprob) of the likeliest tokens at this position, the likeliest first.
    """

    token: int
    token_bytes: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of a prompt's prefill. The prompt's last token is computed with the answer's first token.

    num_tokens: tokens of the prompt. num_processed: those that are cached or computed so far.
    taken_s: seconds since the sequence was admitted.
    """

    num_tokens: int
    num_cached: int
    num_processed: int
    taken_s: float


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed text: whole characters, and never any part of a stop string.

    Fields other than text are set only if the request asks for them.

    text: empty only if there are logprobs or progress.
    logprobs: of the tokens committed with this text.
    is_prompt: whether the logprobs are those of the prompt's next tokens; the text is empty then.
    origins: (part of the text, source) of each run of tokens; for the source see DraftingReport.
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
    stop: the stop string that ended the answer.
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
    """

    kind: Literal["request", "grammar", "engine", "draining", "cancelled"]
    message: str
    usage: Usage = field(default_factory=Usage)
    is_terminal: ClassVar[bool] = True


Event = Delta | Finished | Failed
Sink = Callable[[Event], None]
"""Receives a sequence's events, on the engine's thread: it must not block and must not raise."""
EmbeddingSink = Callable[[Embedded | Failed], None]
"""Receives the terminal event of a request for embeddings, as a Sink does."""
