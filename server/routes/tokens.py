"""POST /tokenize and /detokenize, compatible with llama-server and vLLM."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.generation.chat import check_tools
from server.generation.model_use import serve_model
from server.generation.prompts import TokenIds
from server.generation.service import Service
from server.http.openapi import body_schema
from server.requests.chat import ChatRequest
from server.requests.tokens import DetokenizeRequest, TokenizeRequest
from server.validation.body import read_body
from server.validation.field_errors import validate

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Tokenize a text or a conversation."""
    body = await read_body(request, TokenizeRequest)
    return await serve_model(request, body.model, partial(_tokenize, request, body))


async def _tokenize(request: Request, body: TokenizeRequest, service: Service) -> Response:
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
async def detokenize(request: Request) -> Response:
    """Return the text of token ids, under llama-server's name (content) and vLLM's (prompt)."""
    body = await read_body(request, DetokenizeRequest)

    async def answer(service: Service) -> Response:
        text = await service.prompts.decode(request, body.tokens)
        return JSONResponse({"content": text, "prompt": text})

    return await serve_model(request, body.model, answer)


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Return the tokenizer's class, its special tokens and the chat template, as vLLM does.

    With several models it is that of the model that the server started with.
    """

    async def describe(service: Service) -> Response:
        shown = service.engine.tokenizer.description
        return JSONResponse({**shown, "model_max_length": service.engine.info.context_tokens})

    return await serve_model(request, None, describe)


async def _tokens(request: Request, service: Service, body: TokenizeRequest) -> TokenIds:
    text = getattr(body, body.text_field)
    if text is not None:
        return await service.prompts.encode_text(request, text, body.text_field, body.wants_special)
    given = {
        "messages": body.messages,
        "tools": body.tools,
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
