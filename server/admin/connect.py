"""GET /v1/connect: what `reprise connect` prints, for clients that see the server at this address."""

from typing import Any

from fastapi import APIRouter, Request

from reprise.config.agents.config_file import render
from reprise.config.agents.known import AGENTS, explain_context
from reprise.config.agents.served_model import ServedModel
from reprise.server.admin.models import served_models
from reprise.server.errors import BadRequestError, ModelNotFoundError
from reprise.server.generation.service import service_of
from reprise.server.http.access import sent_keys

KEY_PLACEHOLDER = "YOUR-API-KEY"

router = APIRouter()


@router.get("/v1/connect")
async def connect(request: Request, model: str | None = None) -> dict[str, Any]:
    """Return the settings that connect coding agents to this server: files, relative to the home directory.

    model: the name of the model for them; the first of /v1/models if absent. Where a key was sent, the
    settings have YOUR-API-KEY in its place.
    """
    cards = (await served_models(service_of(request))).data
    card = next((card for card in cards if model in (None, card.id)), None)
    if card is None:
        raise ModelNotFoundError(model or "")
    if card.context_length is None:
        raise BadRequestError(
            f"The context of the model '{card.id}' is known only once it is loaded. Load it first.",
            param="model",
            code="model_not_loaded",
        )
    served = ServedModel(
        str(request.base_url).rstrip("/"),
        card.id,
        card.context_length,
        bool(card.tools),
        KEY_PLACEHOLDER if sent_keys(request) else None,
    )
    agents = {name: settings_of(served) for name, settings_of in AGENTS.items()}
    return {
        "model": served.name,
        "url": served.openai_url,
        "agents": [
            {
                "name": name,
                "files": [{"path": f"~/{file.path}", "text": render(file, None)} for file in agent.files],
                "notes": [*agent.notes, *([warning] if (warning := explain_context(name, served)) else [])],
            }
            for name, agent in agents.items()
        ],
    }
