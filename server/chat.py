"""A conversation answered, whatever the API that it came by: each shows the same parts in its own shape."""

from fastapi import Request, Response

from server.answers import respond
from server.parts import PlainReader
from server.presenter import Presenter
from server.schemas import ChatRequest
from server.service import Service


async def answer_chat(
    request: Request, service: Service, body: ChatRequest, presenter: Presenter
) -> Response:
    """Answer a conversation. Raises ApiError while the status can still say so."""
    prompt, prediction = await service.prompts.encode_chat(request, body)
    return await respond(request, service, body, presenter, [prompt], PlainReader, prediction)
