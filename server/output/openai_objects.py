"""The objects of OpenAI's responses.

Fields that OpenAI always sends are always set, to null if there is no value. Fields that OpenAI sends only on
request are otherwise left unset, and unset fields are not sent.
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from reprise.engine.interface.events import TokenLogprob
from reprise.server.output.parts import FinishReason


class PromptTokensDetails(BaseModel):
    """The number of the prompt's tokens that came from the prefix cache.

    image_tokens: how many are images'; sent if there are any.
    """

    cached_tokens: int
    image_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    """Counts of the completion tokens by kind. The prediction is the one that the client sent."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int
    audio_tokens: int


class UsageBlock(BaseModel):
    """Token counts over all choices; a prompt counts once, even if it has several choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DraftCounts(BaseModel):
    """Tokens that were drafted and verified, and how many of them were accepted."""

    draft_n: int
    draft_n_accepted: int


class TranslationBlock(BaseModel):
    """How the draft model's drafts were translated.

    strategy: the one of --draft-translation in use.
    drafted, accepted: counts of target tokens made from the drafts.
    The others: see TranslationCounts in engine/speculative/translation.py.
    """

    strategy: str
    drafted: int
    accepted: int
    translated: int
    absorbed: int
    resynchronised: int
    skipped: int


class GateBlock(BaseModel):
    """The gate's decision about the prompt before the first token; see events.DraftingReport.

    undrafted: why nothing, or next to nothing, was drafted all the same; see explain_undrafted().
    """

    score: float | None
    decision: str
    reason: str
    undrafted: str | None


class WindowBlock(BaseModel):
    """The settings of a WeDLM model's windowed decoding; see request.WindowSettings. note: their effect."""

    window_size: int
    entropy_threshold: float | None
    pos_penalty_factor: float
    anchor: bool
    note: str


class Timings(BaseModel):
    """Times and counts over all choices. Not part of OpenAI's API.

    The names up to draft_n_accepted are llama-server's, the others are Reprise's own.

    cache_n: prompt tokens taken from the prefix cache. prompt_n: prompt tokens computed.
    prompt_ms: from the end of the wait for a row to the first token.
    predicted_ms: from the start of the step that made the first token to the end.
    forwards: forward passes of decoding. fed: tokens fed in them.
    gate: the gate's decision for the first choice, and what came of it over all choices.
    translation: sent if a draft model read the prompt. streaming: sent if the answer was decoded in windows.
    stopped: sent if the loop guard ended a choice.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    forwards: int
    fed: int
    by_source: dict[str, DraftCounts]
    gate: GateBlock
    translation: TranslationBlock | None = None
    streaming: WindowBlock | None = None
    stopped: Literal["loop"] | None = None


class PromptProgress(BaseModel):
    """The progress of a prompt's prefill, in llama-server's fields.

    total, cache, processed: tokens of the prompt, of them cached, and done so far, cached ones included.
    time_ms: since the prompt was begun.
    """

    total: int
    cache: int
    processed: int
    time_ms: float


class CalledFunction(BaseModel):
    """The function to call.

    arguments: a JSON object as text.
    """

    name: str
    arguments: str


class CalledCustom(BaseModel):
    """The free-form tool to call, and its input as text."""

    name: str
    input: str


class MessageToolCall(BaseModel):
    """A tool call that the client is asked to make.

    index: its position among the tool calls; in chunks only. function, custom: one of them, by the type.
    """

    index: int | None = None
    id: str
    type: Literal["function", "custom"]
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class MoreArguments(BaseModel):
    """The next bit of a function's arguments."""

    arguments: str


class MoreInput(BaseModel):
    """The next bit of a free-form tool's input."""

    input: str


class ContinuedToolCall(BaseModel):
    """A tool call of an earlier chunk, whose arguments continue. index: its position among the tool calls."""

    index: int
    function: MoreArguments | None = None
    custom: MoreInput | None = None


class LikelyToken(BaseModel):
    """A token that was possible at a position.

    bytes: the token's bytes, which may be only part of a character.
    """

    token: str
    bytes: list[int]
    logprob: float


class TokenEntry(LikelyToken):
    """A sampled token.

    top_logprobs: the most likely tokens at its position.
    """

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """Log probabilities of a message's content, or of the part of it in a chunk."""

    content: list[TokenEntry]
    refusal: None


class CompletionLogprobs(BaseModel):
    """Log probabilities of a completion, as four lists of the same length.

    The first token of an echoed prompt has null: no probability is known for it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AssistantMessage(BaseModel):
    """The message of a chat completion.

    content: null if there are only tool calls.
    reasoning_content: not part of OpenAI's API; sent if there is reasoning.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class TracedText(BaseModel):
    """A run of the model's text, markers included, from one source: a drafter, or "model"."""

    text: str
    source: str


class ChatChoice(BaseModel):
    """A choice of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    schema_valid: bool | Literal["unknown"] | None = None
    draft_trace: list[TracedText] | None = None
    token_ids: list[int] | None = None


class Delta(BaseModel):
    """The part of the message that a chunk adds; unset fields add nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall | ContinuedToolCall] | None = None


class ChatChunkChoice(BaseModel):
    """A choice within a chunk of a chat completion."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    schema_valid: bool | Literal["unknown"] | None = None
    finish_reason: FinishReason | None
    draft_trace: list[TracedText] | None = None
    token_ids: list[int] | None = None


class CompletionChoice(BaseModel):
    """A choice of a completion, or the part of it in a chunk."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    schema_valid: bool | Literal["unknown"] | None = None
    draft_trace: list[TracedText] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


class Envelope(BaseModel):
    """A response, or a chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None
    choices: list[Choice]
    usage: UsageBlock | None = None
    timings: Timings | None = None
    prompt_progress: PromptProgress | None = None
    prompt_token_ids: list[int] | None = None

    def to_json(self) -> bytes:
        """Return the JSON to send, without unset fields."""
        return self.model_dump_json(exclude_unset=True).encode()


FLOOR = -9999.0
"""Replaces the log probability of a token that cannot occur, as in OpenAI's API: JSON has no infinity."""


def finite(logprob: float | None) -> float:
    """Return a log probability that JSON can write; see FLOOR."""
    return logprob if logprob is not None and math.isfinite(logprob) and logprob > FLOOR else FLOOR


def chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Format log probabilities for /v1/chat/completions.

    A token that holds only part of a character is shown as U+FFFD, along with its bytes.
    """
    return ChatLogprobs(content=[_entry(entry) for entry in entries], refusal=None)


def _entry(entry: TokenLogprob) -> TokenEntry:
    return TokenEntry(
        token=_shown(entry.token_bytes),
        bytes=list(entry.token_bytes),
        logprob=finite(entry.logprob),
        top_logprobs=[
            LikelyToken(token=_shown(token_bytes), bytes=list(token_bytes), logprob=finite(logprob))
            for _, token_bytes, logprob in entry.top
        ],
    )


def _shown(token_bytes: bytes) -> str:
    return token_bytes.decode(errors="replace")
