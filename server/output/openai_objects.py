"""The objects that clients get, in OpenAI's shapes.

Fields that OpenAI always sends are set, with null where there is nothing to say; those that it sends
only when asked are left unset, and unset fields are not sent.
"""

from typing import Literal

from pydantic import BaseModel

from server.output.parts import EndReason


class PromptTokensDetails(BaseModel):
    """Where the prompt's keys and values came from."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """What the answer's tokens were. The prediction is the client's."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int
    audio_tokens: int


class UsageBlock(BaseModel):
    """Token counts over all choices; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DraftCounts(BaseModel):
    """Tokens that were drafted and verified, and those of them that were right."""

    draft_n: int
    draft_n_accepted: int


class TranslationBlock(BaseModel):
    """What became of the draft model's drafts: see engine.translation.TranslationCounts.

    strategy: how they were translated. drafted, accepted: tokens of the model's that came of them.
    """

    strategy: str
    drafted: int
    accepted: int
    translated: int
    absorbed: int
    resynchronised: int
    skipped: int


class GateBlock(BaseModel):
    """What was made of the prompt before the first token: see engine.request.DraftingReport."""

    score: float | None
    decision: str
    reason: str


class Timings(BaseModel):
    """What the answer took, over all choices. Not OpenAI's; the names are those of llama-server.

    prompt_n: tokens computed, without the cache_n tokens that were not.
    prompt_ms: from the end of the wait for a row to the first token. predicted_ms: from the step that made
        that token to the end.
    forwards: those of decoding. gate: the first choice's. translation: sent if a draft model read the prompt.
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
    by_source: dict[str, DraftCounts]
    gate: GateBlock
    translation: TranslationBlock | None = None


class CalledFunction(BaseModel):
    """What is called. arguments: JSON text of an object."""

    name: str
    arguments: str


class MessageToolCall(BaseModel):
    """A call that the client is asked to make. index: its place among the calls, in chunks only."""

    index: int | None = None
    id: str
    type: Literal["function"]
    function: CalledFunction


class LikelyToken(BaseModel):
    """A token that could have stood at a place. bytes: its own, which may be part of a character."""

    token: str
    bytes: list[int]
    logprob: float


class TokenEntry(LikelyToken):
    """A token of the answer. top_logprobs: the likeliest at its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """The tokens of a message's content, or of what a chunk adds to it."""

    content: list[TokenEntry]
    refusal: None


class CompletionLogprobs(BaseModel):
    """The tokens of a plain completion; four lists of one length. null for the first token of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AssistantMessage(BaseModel):
    """The answer. content: null if there are only calls. reasoning_content: not OpenAI's, if it thought."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatChoice(BaseModel):
    """One answer of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: EndReason


class Delta(BaseModel):
    """What a chunk adds to the message; unset fields add nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatChunkChoice(BaseModel):
    """What a chunk says of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: EndReason | None


class CompletionChoice(BaseModel):
    """One answer of a plain completion, or what a chunk adds to it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: EndReason | None


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


class Envelope(BaseModel):
    """A whole response or one chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None
    choices: list[Choice]
    usage: UsageBlock | None = None
    timings: Timings | None = None

    def to_json(self) -> bytes:
        """The envelope as it is sent, without what was never set."""
        return self.model_dump_json(exclude_unset=True).encode()


class ModelCard(BaseModel):
    """A served model, under one of its names."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["reprise"] = "reprise"


class ModelList(BaseModel):
    """All names that a request may give."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
