"""POST /tokenize and /detokenize, compatible with llama-server and vLLM."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from server.generation.chat import check_tools
from server.generation.prompts import TokenIds
from server.generation.service import Service, service_of
from server.http.openapi import body_schema
from server.requests.chat import ChatRequest
from server.requests.tokens import DetokenizeRequest, TokenizeRequest
from server.validation.body import read_body
from server.validation.field_errors import validate

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> JSONResponse:
    """Tokenize a text or a conversation."""
    service = service_of(request)
    body = await read_body(request, TokenizeRequest)
    service.check_ready()
    service.check_model(body.model)
    tokens = await _tokens(request, service, body)
    answer: dict[str, Any] = {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": service.engine.info.context_tokens,
        "token_strs": None,
    }
    if body.with_pieces or body.return_token_strs:
        pieces = await service.prompts.token_bytes(request, tokens)
        if body.with_pieces:
            answer["tokens"] = _with_pieces(tokens, pieces)
        if body.return_token_strs:
            answer["token_strs"] = [piece.decode(errors="replace") for piece in pieces]
    return JSONResponse(answer)


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(request: Request) -> JSONResponse:
    """Return the text of token ids, under llama-server's name (content) and vLLM's (prompt)."""
    service = service_of(request)
    body = await read_body(request, DetokenizeRequest)
    service.check_ready()
    service.check_model(body.model)
    text = await service.prompts.decode(request, body.tokens)
    return JSONResponse({"content": text, "prompt": text})


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> JSONResponse:
    """Return the tokenizer's class, its special tokens and the chat template, as vLLM does."""
    service = service_of(request)
    service.check_ready()
    shown = service.engine.tokenizer.description
    return JSONResponse({**shown, "model_max_length": service.engine.info.context_tokens})


async def _tokens(request: Request, service: Service, body: TokenizeRequest) -> TokenIds:
    text = getattr(body, body.text_field)
    if text is not None:
        return await service.prompts.encode_text(request, text, body.text_field, body.wants_special)
    given = {
        "messages": body.messages,
        "tools": list(body.tools),
        "chat_template_kwargs": body.chat_template_kwargs,
        "continue_final_message": body.continue_final_message,
        "add_generation_prompt": body.add_generation_prompt,
    }
    chat = validate(given, ChatRequest)
    check_tools(service, chat)
    return (await service.prompts.encode_chat(request, chat)).tokens


def _with_pieces(tokens: TokenIds, pieces: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return tokens as llama-server does: a piece that is not whole characters is an array of bytes."""
    shown: list[dict[str, Any]] = []
    for token, piece in zip(tokens, pieces, strict=True):
        try:
            shown.append({"id": token, "piece": piece.decode()})
        except UnicodeDecodeError:
            shown.append({"id": token, "piece": list(piece)})
    return shown
