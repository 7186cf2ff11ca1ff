"""POST /tokenize, /detokenize and /apply-template."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import to_json

from reprise.server.generation.prepare import encode_prompt, with_documents
from reprise.server.generation.service import LeasedModel, lease_for, lease_model
from reprise.server.http.body import read_body
from reprise.server.http.executor import FORMAT
from reprise.server.http.openapi import body_schema
from reprise.server.prompt.encoder import TokenIds, decode, encode_text
from reprise.server.requests.chat import ONE_END, ChatRequest, Messages, TemplateArguments, Tools, read_chat
from reprise.server.requests.fields import (
    RequestModel,
    Rules,
    TokenId,
    field_error,
    neutral,
    notes_in,
    unsupported,
    validate,
)

_TEXT_FIELDS = ("content", "prompt", "messages")


class TokenizeRequest(RequestModel):
    """The body of POST /tokenize: exactly one of content, prompt and messages."""

    rules: ClassVar[Rules] = (
        {
            "anyOf": [
                {**neutral("prompt", "messages"), "required": ["content"]},
                {**neutral("content", "messages"), "required": ["prompt"]},
                {**neutral("content", "prompt"), "required": ["messages"]},
            ]
        },
        {"not": neutral("content", "prompt", "messages")},
        ONE_END,
        {"anyOf": [neutral("messages"), neutral("add_special", "add_special_tokens", values=(None, False))]},
        {
            "anyOf": [
                neutral("add_special"),
                neutral("add_special_tokens"),
                neutral("add_special", "add_special_tokens", values=(True,)),
                neutral("add_special", "add_special_tokens", values=(False,)),
            ]
        },
    )

    model: str | None = None
    """The model's name or one of its aliases. null: the served model."""
    content: str | None = Field(None, description="The text, under llama-server's name.")
    prompt: str | None = Field(None, description="The text, under vLLM's name.")
    messages: Messages | None = Field(None, description="A conversation; returns the tokens of its prompt.")
    tools: Tools = Field((), description="Tools to render with the messages.")
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments for the chat template."""
    add_special: bool | None = None
    """Whether to add the special tokens that a prompt begins or ends with. null: true for prompt, false for
    content. With messages, the chat template decides."""
    add_special_tokens: bool | None = Field(None, description="vLLM's name for add_special.")
    with_pieces: bool = False
    """Whether to return each token as an object with id and piece."""
    return_token_strs: bool = Field(False, description="Whether to return each token's text in token_strs.")
    parse_special: unsupported(  # type: ignore[valid-type]
        True, phrase="is not supported; leave it out", description="Left out: only the default."
    ) = None
    continue_final_message: bool = False
    """As in a chat: whether the prompt ends within the last message."""
    add_generation_prompt: bool | None = None
    """As in a chat: whether the prompt opens the answer."""

    @model_validator(mode="before")
    @classmethod
    def read_conversation(cls, given: Any, info: ValidationInfo) -> Any:
        """Bring the conversation into the normal form, without a tool_choice: there is none."""
        if not isinstance(given, dict):
            return given
        read = read_chat(given, notes_in(info.context))
        return {name: value for name, value in read.items() if name in given}

    @model_validator(mode="after")
    def check_text_fields(self) -> "TokenizeRequest":
        """Refuse a request without a text or with several, and fields that do not apply to it."""
        given = [name for name in _TEXT_FIELDS if getattr(self, name) is not None]
        if not given:
            raise field_error(
                "missing_required_parameter",
                "is missing, and so are prompt and messages; send one of them",
                "content",
            )
        if len(given) > 1:
            raise field_error(
                "invalid_value", f"and {given[0]} cannot be combined; send one of them", given[1]
            )
        if self.messages is None and self.tools:
            raise field_error("invalid_value", "are allowed only with messages", "tools", leaves_out=True)
        if self.messages is None and self.chat_template_kwargs is not None:
            phrase = "is allowed only with messages"
            raise field_error("invalid_value", phrase, "chat_template_kwargs", leaves_out=True)
        if {self.add_special, self.add_special_tokens} == {True, False}:
            phrase = "and add_special_tokens differ; send one of them"
            raise field_error("invalid_value", phrase, "add_special")
        if self.messages is not None and self.special_requested:
            name = "add_special" if self.add_special else "add_special_tokens"
            raise field_error("unsupported_value", "is decided by the chat template; leave it out", name)
        return self

    @property
    def special_requested(self) -> bool | None:
        """Whether to add the special tokens that a prompt begins or ends with; None if it does not say."""
        return self.add_special_tokens if self.add_special is None else self.add_special


class DetokenizeRequest(RequestModel):
    """The body of POST /detokenize."""

    model: str | None = None
    """The model's name or one of its aliases. null: the served model."""
    tokens: list[TokenId] = Field(description="Token ids; at most as many as the context holds.")


router = APIRouter()
BODIES = (TokenizeRequest, DetokenizeRequest)
TOKENS_AT_ONCE = 4096
"""Maximum tokens that are written before others have their turn."""


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Tokenize a text or a conversation."""
    body = await read_body(request, TokenizeRequest)
    leased = await lease_for(request, body, purpose=None)
    tokens = await leased.run_in_turn(request, partial(_tokens, request, leased, body))
    frames = _frames(leased, body, tokens)
    if len(tokens) <= TOKENS_AT_ONCE:
        return Response(b"".join([frame async for frame in frames]), media_type="application/json")
    # Written while the client reads it: with pieces it is many times as long as the text.
    return StreamingResponse(frames, media_type="application/json")


async def _frames(leased: LeasedModel, body: TokenizeRequest, tokens: TokenIds) -> AsyncIterator[bytes]:
    """Yield the JSON of the answer, a slice of the tokens at a time."""
    head = {"count": len(tokens), "max_model_len": leased.engine.info.context_tokens}
    yield to_json(head)[:-1]
    piece_of = leased.engine.tokenizer.piece
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
            written = write() if len(some) < TOKENS_AT_ONCE // 2 else await FORMAT.run(write)
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
    leased = await lease_for(request, body, purpose=None)

    def work() -> bytes:
        text = decode(leased.engine, body.tokens)
        return to_json({"content": text, "prompt": text})

    return Response(await leased.run_in_turn(request, work), media_type="application/json")


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Return the tokenizer's class, its special tokens and the chat template, as vLLM does.

    With several models it is that of the model that the server started with.
    """

    engine = (await lease_model(request, None, purpose=None)).engine
    return JSONResponse({**engine.tokenizer.description, "model_max_length": engine.info.context_tokens})


def _tokens(request: Request, leased: LeasedModel, body: TokenizeRequest) -> TokenIds:
    field, text = ("prompt", body.prompt) if body.content is None else ("content", body.content)
    if text is not None:
        is_prompt = field == "prompt" if body.special_requested is None else body.special_requested
        return encode_text(leased.engine, text, field, is_prompt=is_prompt)
    names = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")
    chat = validate({name: getattr(body, name) for name in names}, ChatRequest)
    return encode_prompt(request, leased, with_documents(request, leased, chat)).tokens


def with_pieces(piece_of: Callable[[int], bytes], tokens: TokenIds) -> list[dict[str, Any]]:
    """Return {id, piece} of each token, as llama-server does. Incomplete characters are an array of bytes."""

    def shown(piece: bytes) -> str | list[int]:
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return list(piece)

    return [{"id": token, "piece": shown(piece_of(token))} for token in tokens]
