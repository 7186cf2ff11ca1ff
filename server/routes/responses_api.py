"""POST /v1/responses, and what is kept of it."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.body import read_body, validated
from server.chat import answer_chat
from server.errors import BadRequestError
from server.headings import head
from server.openapi import takes
from server.responses_api.items import ItemReference, SaidItem
from server.responses_api.presenter import ResponsePresenter, item_id
from server.responses_api.queries import GetQuery, ListQuery, page
from server.responses_api.schemas import ResponsesRequest
from server.responses_api.store import ResponseStore
from server.responses_api.translation import PREVIOUS, Translation
from server.service import service_of
from server.tenants import key_digest

router = APIRouter()
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


@router.post("/v1/responses", openapi_extra=takes(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Answer a conversation, which may go on where an earlier response ended."""
    service = service_of(request)
    body = await read_body(request, ResponsesRequest)
    service.check_ready()
    heading = head(request, service, body.model)
    owner, store = key_digest(request), service.responses
    previous = None
    if body.previous_response_id is not None:
        code = "previous_response_not_found"
        previous = store.find(owner, body.previous_response_id, PREVIOUS, code).turn
    said = _said(body, owner, store)
    translation = Translation(body)
    chat = translation.chat(previous.conversation() if previous else (), said)

    def keep(response: dict[str, Any]) -> None:
        if body.store:
            given = [item.kept(item_id(heading, _PREFIXES[item.type], i)) for i, item in enumerate(said)]
            store.add(owner, response, previous, given + response["output"], len(given))

    presenter = ResponsePresenter(heading, body, len(said), keep)
    try:
        return await answer_chat(request, service, chat, presenter)
    except BadRequestError as fault:
        raise translation.reworded(fault) from fault


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A response that is kept, as it was given."""
    validated(dict(request.query_params), GetQuery)
    kept = service_of(request).responses.find(key_digest(request), response_id)
    return Response(kept.body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> JSONResponse:
    """Forget a response. Those that continue it can still be continued."""
    service_of(request).responses.remove(key_digest(request), response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> JSONResponse:
    """The items of a kept response's own input, without what it continues."""
    query = validated(dict(request.query_params), ListQuery)
    turn = service_of(request).responses.find(key_digest(request), response_id).turn
    return JSONResponse(page(turn.items()[: turn.num_input], query))


def _said(body: ResponsesRequest, owner: str, store: ResponseStore) -> list[SaidItem]:
    """The request's own items; what a reference means stands in its place."""
    return [
        store.find_item(owner, item.id, f"input[{index}].id") if isinstance(item, ItemReference) else item
        for index, item in enumerate(body.input)
    ]
