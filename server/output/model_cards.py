"""Describe models as GET /v1/models lists them, for clients of OpenAI and of Anthropic."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from reprise.engine.interface.embeddings import Purpose


class ModelMeta(BaseModel):
    """The model's sizes, as llama-server has them.

    n_ctx, n_ctx_train: tokens that this server takes; clients read either. size: bytes of the weights.
    """

    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_params: int
    size: int


class Modalities(BaseModel):
    """The kinds of input and output."""

    input: list[Literal["text", "image"]] = ["text"]
    output: list[Literal["text"]] = ["text"]


class VisionCard(BaseModel):
    """How a model sees images.

    example_tokens: tokens of one of 1024x768 pixels. max_tokens: of any one. max_images: of a conversation.
    """

    example_tokens: int
    max_tokens: int
    max_images: int


class EmbeddingCard(BaseModel):
    """Facts about a model's vectors: their size, the pooling, and its prompts by name.

    is_guessed: whether the pooling or the prompts were decided by the architecture, as the folder does not
        name them.
    """

    dimensions: int
    pooling: str
    is_guessed: bool
    normalizes: bool
    prompts: dict[str, str]
    default_prompt: str | None


class ModelCard(BaseModel):
    """The served model under one of its names.

    context_length, max_model_len: tokens of prompt and answer together. tools, reasoning: whether the server
    knows the model's format of tool calls, and of reasoning. tool_format: its name; generic if the chat
    template knows no tools; null without tools. sampling_defaults: if a request leaves it out.
    purpose: what the model is for. embedding: how it makes vectors or scores; null if it generates.
    vision: how it sees images; null if it does not.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["reprise"] = "reprise"
    context_length: int
    max_model_len: int
    meta: ModelMeta
    modalities: Modalities = Modalities()
    tools: bool
    tool_format: str | None = None
    reasoning: bool
    sampling_defaults: dict[str, float]
    purpose: Purpose = "generate"
    embedding: EmbeddingCard | None = None
    vision: VisionCard | None = None


class ListedModelCard(ModelCard):
    """One of several models under one of its names. Fields that are not known before it is loaded are null.

    state: whether its weights are in memory. size_bytes: of its weights. progress: the loaded share of them,
    0 to 1, while it is loading; phase: what it is at then, in words.
    fault: why it cannot be loaded, if that is known. running, waiting: its requests.
    """

    context_length: int | None  # type: ignore[assignment]
    max_model_len: int | None  # type: ignore[assignment]
    meta: ModelMeta | None  # type: ignore[assignment]
    tools: bool | None  # type: ignore[assignment]
    reasoning: bool | None  # type: ignore[assignment]
    state: Literal["unloaded", "loading", "loaded"]
    size_bytes: int
    progress: float | None
    phase: str | None
    fault: str | None
    running: int
    waiting: int


class ModelList(BaseModel):
    """All names by which a request may name a model."""

    object: Literal["list"] = "list"
    data: list[ListedModelCard | ModelCard]


class MessagesModel(BaseModel):
    """A model under one of its names. The limits are null until it is loaded."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class MessagesModelList(BaseModel):
    """All models; there is never a second page."""

    data: list[MessagesModel]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


def messages_model(card: ModelCard) -> MessagesModel:
    """Return a model in Anthropic's shape."""
    return MessagesModel(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=card.context_length,
        max_tokens=card.context_length,
    )


def messages_models(cards: Sequence[ModelCard]) -> MessagesModelList:
    """Return the list of models in Anthropic's shape."""
    models = [messages_model(card) for card in cards]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return MessagesModelList(data=models, first_id=first, last_id=last)
