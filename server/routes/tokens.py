"""POST /tokenize and /detokenize, compatible with llama-server and vLLM."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic_core import to_json

from reprise.server.fair_queue import beside
from reprise.server.generation.chat import check_tools
from reprise.server.generation.model_use import serve_body, serve_model
from reprise.server.generation.prompts.chat_prompt import TokenIds
from reprise.server.generation.service import Service
from reprise.server.http.openapi import body_schema
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.tokens import DetokenizeRequest, TokenizeRequest
from reprise.server.validation.body import read_body
from reprise.server.validation.field_errors import validate

router = APIRouter()
TOKENS_AT_ONCE = 4096
"""Maximum tokens that are written before others have their turn."""
PIECE_BYTES = 16
"""The work of writing a token, in bytes of text to parse."""


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Tokenize a text or a conversation."""
    return await serve_body(request, await read_body(request, TokenizeRequest), _tokenize, None)


async def _tokenize(request: Request, body: TokenizeRequest, service: Service) -> Response:
    tokens = await _tokens(request, service, body)
    frames = _frames(request, service, body, tokens)
    if len(tokens) <= TOKENS_AT_ONCE:
        return Response(b"".join([frame async for frame in frames]), media_type="application/json")
    # Written while the client reads it: with pieces it is many times as long as the text.
    return StreamingResponse(frames, media_type="application/json")


async def _frames(
    request: Request, service: Service, body: TokenizeRequest, tokens: TokenIds
) -> AsyncIterator[bytes]:
    """Yield the JSON of the answer, a slice of the tokens at a time."""
    head = {"count": len(tokens), "max_model_len": service.engine.info.context_tokens}
    yield to_json(head)[:-1]
    piece_of = service.engine.tokenizer.piece
    lists: dict[str, Callable[[TokenIds], list[Any]]] = {
        "tokens": partial(with_pieces, piece_of) if body.with_pieces else list
    }
    if body.return_token_strs:
        lists["token_strs"] = lambda some: [piece_of(token).decode(errors="replace") for token in some]
    else:
        yield b',"token_strs":null'
    for name, shown in lists.items():
        yield f',"{name}":['.encode()
        for start in range(0, len(tokens), TOKENS_AT_ONCE):
            some = tokens[start : start + TOKENS_AT_ONCE]
            write = partial(json_of_tokens, shown, some)
            written = await service.bodies.run(request, PIECE_BYTES * len(some), write)
            yield written if start == 0 else b"," + written
        yield b"]"
    yield b"}"


def json_of_tokens(shown: Callable[[TokenIds], list[Any]], tokens: TokenIds) -> bytes:
    """Return tokens as a JSON array without its brackets. shown: converts tokens to JSON values."""
    return to_json(shown(tokens))[1:-1]


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """Return the text of token ids, under llama-server's name (content) and vLLM's (prompt)."""
    body = await read_body(request, DetokenizeRequest)

    async def answer(service: Service) -> Response:
        text = await service.prompts.decode(request, body.tokens)
        # Of the longest tokens it is many times as long as the request.
        write = partial(to_json, {"content": text, "prompt": text})
        written = await service.bodies.run(request, 2 * len(text), write)
        return Response(written, media_type="application/json")

    return await serve_model(request, body.model, answer, purpose=None)


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Return the tokenizer's class, its special tokens and the chat template, as vLLM does.

    With several models it is that of the model that the server started with.
    """

    async def describe(service: Service) -> Response:
        shown = service.engine.tokenizer.description
        return JSONResponse({**shown, "model_max_length": service.engine.info.context_tokens})

    return await serve_model(request, None, describe, purpose=None)


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
    chat = await beside(request, partial(validate, given, ChatRequest))
    check_tools(service, chat)
    return (await service.prompts.encode_chat(request, chat)).tokens


def with_pieces(piece_of: Callable[[int], bytes], tokens: TokenIds) -> list[dict[str, Any]]:
    """Return {id, piece} of each token, as llama-server does. Incomplete characters are an array of bytes."""
    shown: list[dict[str, Any]] = []
    for token in tokens:
        piece = piece_of(token)
        try:
            shown.append({"id": token, "piece": piece.decode()})
        except UnicodeDecodeError:
            shown.append({"id": token, "piece": list(piece)})
    return shown
