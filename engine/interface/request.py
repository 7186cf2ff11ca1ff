"""Define what the server asks of the engine: one sequence to generate, and how.

It crosses between threads, so it is plain and frozen. Like the rest of this folder it imports no MLX, so that
the server can use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reprise.drafters.base import View as View
from reprise.engine.interface.images import PromptImage

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
    ignores_eos: whether the model's end-of-answer tokens are never chosen if there is any other.
    min_tokens: no end-of-answer token is chosen among the first min_tokens tokens if there is any other.
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
    def has_penalties(self) -> bool:
        """Whether any penalty has an effect."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def has_bias(self) -> bool:
        """Whether any token's logit is changed by a constant."""
        return bool(self.logit_bias or self.allowed or self.ignores_eos or self.min_tokens)


DraftType = Literal[
    "auto", "none", "ngram-simple", "ngram-mod", "suffix", "draft-model", "mtp", "eagle3", "dflash", "wedlm"
]


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """One request's settings for drafting.

    type: which drafters to use. max_tokens: maximum tokens of one draft, if lower than the server's limit; 0
        for no drafts. None for the server's setting.
    """

    type: DraftType | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Windowed decoding of one request by a WeDLM model, which may answer differently than plain decoding.

    window_size: tokens and holes after the settled text, >= 1.
    entropy_threshold: holes of lower entropy, in nats, are filled; None to fill one at a time.
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
    """A limit for an answer's reasoning: after num_tokens, its end marker is forced.

    start, end: the token ids of the markers around reasoning; end has at least one.
    is_open: whether the prompt has opened the reasoning.
    is_repeated: whether the answer may have several reasoning sections, which share the budget.
    """

    num_tokens: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    is_open: bool = False
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Trigger:
    """What begins a tool call: one of several tokens, or a text in any tokenization.

    The grammar of the call begins with it. A token that contains the beginning of `text` may begin with other
    text, which the grammar therefore allows before it. Engine.compile_grammar() adds these tokens.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer must match. Each token is chosen among those that the grammar allows.

    kind: the format of `text`, for llguidance; "any" for a thinking budget alone.
    trigger: what begins a tool call, if the grammar covers only calls and other text is free; None if it
        covers the whole answer.
    compiled: the compiled form, which only the engine reads; None before Engine.compile_grammar().
    """

    kind: Literal["json_schema", "regex", "lark", "any"]
    text: str
    thinking: ThinkingBudget | None = None
    trigger: Trigger | None = None
    compiled: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. The server has validated all fields; the engine does not check them again.

    id: unique among the requests that have not ended; Engine.cancel() takes it.
    prompt: (n,) token ids, 1 <= n < ModelInfo.context_tokens.
    max_tokens: maximum tokens of the answer, >= 1; n + max_tokens <= ModelInfo.context_tokens.
    stop: strings that end the answer and are not part of it. They are not looked for in the first
        sampling.min_tokens tokens.
    stop_tokens: token ids that end the answer, beside the model's; they have no text.
    prediction: token ids of the answer that the client expects.
    views: texts in the prompt, rewritten as an answer would quote them, for drafters to copy from. May grow
        at its end while the request runs.
    tenant: whose request this is. If the server separates tenants, no tenant's text is drafted for another.
    top_logprobs: number of likeliest tokens to report at each position of the answer, besides the log
        probability of the token itself. 0 for that alone, None for no log probabilities.
    prompt_logprobs: whether to report those of the prompt's tokens too, in deltas before the answer's.
    reports_progress: whether to report prefill progress, in deltas before the answer's.
    reports_usage, reports_origins: whether each delta has them.
    window_settings: how several tokens are filled in at once; None for plain decoding, drafts or not.
    head_tokens: leading tokens of the prompt before the user's first words: system text and tools.
    images: in order. The prompt's tokens have the model's placeholder where an image is; its last token
        belongs to no image.
    loop_guard_tokens: the answer ends if so many of its last tokens only repeat one text; 0 for never. See
        batch/sequence.py.
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
    window_settings: WindowSettings | None = None
    loop_guard_tokens: int = 0
    head_tokens: int = 0
    images: tuple[PromptImage, ...] = ()
