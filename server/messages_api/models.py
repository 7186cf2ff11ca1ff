"""The models as Anthropic's clients list them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from fastapi import Request
from pydantic import BaseModel

from reprise.server.output.model_cards import ModelCard


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


def is_anthropic_client(request: Request) -> bool:
    """Return whether a request for models is for Anthropic's API, which has the same path as OpenAI's."""
    return "anthropic-version" in request.headers


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
