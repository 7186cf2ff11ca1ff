"""Embed texts and rank documents: from a body to the engine and back."""

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from reprise.engine.interface.embeddings import (
    Embedded,
    EmbeddingInfo,
    EmbeddingInput,
    EmbeddingRequest,
    count_alike,
)
from reprise.engine.interface.errors import EngineError
from reprise.engine.interface.events import Failed
from reprise.engine.interface.models import ModelInfo
from reprise.server.errors import bad_field, from_engine, from_failure
from reprise.server.generation.service import LeasedModel, wait_unless_gone
from reprise.server.http.executor import FORMAT
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.prompt.encoder import TokenIds, encode_texts
from reprise.server.prompt.length import check_encoded, check_token_ids
from reprise.server.requests.embeddings import Cut, EmbeddingsRequest, RerankRequest

if TYPE_CHECKING:
    from reprise.engine.embedding.embedding_engine import EmbeddingEngine

PART_BYTES = 256 * 2**10
"""Bytes of a response that are sent at a time."""


def numbers_of(vector: bytes) -> list[float]:
    """Convert a vector from bytes, little-endian float32, to a list of numbers."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def write_numbers(vector: bytes) -> bytes:
    """Write a vector, little-endian float32, as a JSON array."""
    return to_json(numbers_of(vector))


_SAME = {
    "query": ("query", "search_query"),
    "search_query": ("search_query", "query"),
    "document": ("document", "passage", "search_document"),
    "passage": ("passage", "document", "search_document"),
    "search_document": ("search_document", "document", "passage"),
}
"""Names that a model may have given its prompt for an input type, in the order of preference."""

INSTRUCTED = "Instruct: "
"""Beginning of the prompts of models that are told what a query is for."""


def encode_inputs(
    request: Request, leased: LeasedModel, body: EmbeddingsRequest
) -> tuple[EmbeddingInput, ...]:
    """Return the tokens of each text, with the prompt and the special tokens of the embedding model.

    Raises BadRequestError, and the exceptions of encode_texts().
    """
    info, embedding = leased.engine.info, leased.engine.info.embedding
    assert embedding
    if body.dimensions is not None and body.dimensions > embedding.dimensions:
        most = f"the vectors of '{info.name}' have {embedding.dimensions}"
        raise bad_field("dimensions", f"is {body.dimensions}; {most}. Ask for fewer, or leave it out")
    prompt = _find_prompt(request, body, info, embedding)
    texts = [prompt + one for one in body.input if isinstance(one, str)]
    encoded = iter(encode_texts(leased.engine, texts))
    num_prompt = len(encode_texts(leased.engine, [prompt])[0]) if prompt else 0
    first_pooled = 0
    if prompt and not embedding.recipe.counts_prompt:
        first_pooled = len(embedding.before) + num_prompt
    room = info.context_tokens - len(embedding.before) - len(embedding.after) - num_prompt
    if texts and prompt and room < 1:
        named = "prompt_name" if body.instruction is None else "instruction"
        phrase = f"has {num_prompt} tokens, which leave '{info.name}' no room for a text. Shorten it"
        raise bad_field(named, phrase, "context_length_exceeded")
    inputs = []
    for index, one in enumerate(body.input):
        param = f"input[{index}]" if len(body.input) > 1 else "input"
        if isinstance(one, str):
            # A text that is too long loses its own tokens, not those of the prompt.
            whole = next(encoded)
            head, text = whole[:num_prompt], whole[num_prompt:]
            check_encoded(head, param, info)
            tokens = (*embedding.before, *head, *_cut(text, room, body.truncate, param, info))
            inputs.append(EmbeddingInput((*tokens, *embedding.after), min(first_pooled, len(tokens))))
        else:
            check_token_ids(one, param, info)
            inputs.append(EmbeddingInput(_cut(one, info.context_tokens, body.truncate, param, info)))
    return tuple(inputs)


def encode_pairs(request: Request, leased: LeasedModel, body: RerankRequest) -> tuple[EmbeddingInput, ...]:
    """Return the tokens of each pair of query and document, as the ranking model takes them.

    Raises as encode_inputs() does.
    """
    info, embedding = leased.engine.info, leased.engine.info.embedding
    assert embedding
    head = body.query
    if embedding.pair:
        head = embedding.pair.format(query=body.query, instruction=body.instruction or embedding.instruction)
    elif body.instruction is not None:
        note_ignored(request, ["instruction"])
    (query,) = encode_texts(leased.engine, [head])
    documents: Sequence[str] = body.documents
    if embedding.pair:
        # As one text: a document's first token may begin with the space before it.
        documents = [f"{head} {document}" for document in documents]
    encoded = encode_texts(leased.engine, documents)
    check_encoded(query, "query", info)
    before = (*embedding.before, *query, *embedding.between)
    num_there = len(query) if embedding.pair else 0
    room = info.context_tokens - len(before) - len(embedding.after)
    if room < 1:
        most = info.context_tokens - len(before) + len(query) - len(embedding.after) - 1
        phrase = f"has {len(query)} tokens; this model takes {most} with a document. Shorten it"
        raise bad_field("query", phrase, "context_length_exceeded")
    limit = min(room, body.max_tokens_per_doc or room)
    pairs = []
    for index, text in enumerate(encoded):
        document = text[num_there:][: body.max_tokens_per_doc]
        cut = _cut(document, limit, body.truncate, f"documents[{index}]", info)
        pairs.append(EmbeddingInput((*before, *cut, *embedding.after), first_of_second=len(before)))
    return tuple(pairs)


async def answer_embeddings(
    request: Request,
    leased: LeasedModel,
    encode: Callable[[], tuple[EmbeddingInput, ...]],
    write: Callable[[Sequence[bytes], int], bytes],
    dimensions: int | None = None,
) -> Response:
    """Embed or score inputs and respond with the JSON that write() makes of the vectors.

    encode: returns the inputs. write: is given the vector of each input, or its score as a vector of one
        number, in little-endian float32, and the number of tokens of all inputs. Both are called on a thread.

    Raises ApiError if the engine refuses or fails, and ClientGoneError if the client disconnects.
    """

    def prepare() -> tuple[tuple[EmbeddingInput, ...], int]:
        inputs = encode()
        return inputs, count_alike(inputs)

    inputs, num_alike = await leased.run_in_turn(request, prepare)
    engine = cast("EmbeddingEngine", leased.engine)
    done: asyncio.Future[Embedded | Failed] = asyncio.get_running_loop().create_future()

    def note(event: Embedded | Failed) -> None:
        if not done.done():
            done.set_result(event)

    asked = EmbeddingRequest(record_of(request).engine_request_id, inputs, dimensions, num_alike)
    try:
        engine.embed(asked, partial(leased.app.event_bridge.post, note))
    except EngineError as fault:
        raise from_engine(fault) from fault
    try:
        await wait_unless_gone(done, request.receive)
    finally:
        if not done.done():
            engine.cancel(asked.id)
    if isinstance(event := done.result(), Failed):
        raise from_failure(event, "input")
    written = await FORMAT.run(write, event.vectors, sum(len(one.tokens) for one in inputs))
    length = {"content-length": str(len(written))}
    return StreamingResponse(_in_parts(written), headers=length, media_type="application/json")


async def _in_parts(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body, which may have 100 MB and more, in parts.

    Sent at once, the body would be copied on the event loop and count as unread output, which is limited per
    address.
    """
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]
        # A client that reads at once would keep the loop from others.
        await asyncio.sleep(0)


def _find_prompt(request: Request, body: EmbeddingsRequest, info: ModelInfo, embedding: EmbeddingInfo) -> str:
    """Return the text that goes before every text of a request. Raises BadRequestError."""
    prompts = embedding.recipe.prompts
    of_query = next((prompts[name] for name in _SAME["query"] if name in prompts), "")
    if body.instruction is not None and body.input_type in _SAME["document"]:
        # It says what a query is for.
        note_ignored(request, ["instruction"])
    elif body.instruction is not None:
        is_instructed = of_query.startswith(INSTRUCTED)
        return f"{INSTRUCTED}{body.instruction}\nQuery:" if is_instructed else body.instruction
    if body.prompt_name is not None:
        if body.prompt_name not in prompts:
            known = ", ".join(f"'{name}'" for name in prompts)
            phrase = f"is not one of the prompts of '{info.name}'; it has {known or 'none'}"
            raise bad_field("prompt_name", phrase)
        return prompts[body.prompt_name]
    if body.input_type is not None:
        found = next((prompts[name] for name in _SAME[body.input_type] if name in prompts), None)
        if found is None:
            note_ignored(request, ["input_type"])
        return found or ""
    return prompts.get(embedding.recipe.default_prompt or "", "")


def _cut(tokens: Sequence[int], room: int, cut: Cut, param: str, info: ModelInfo) -> TokenIds:
    """Truncate tokens to the model's length.

    Raises BadRequestError for too many tokens if none may be cut off, and for tokens that the weights lack.
    """
    if len(tokens) > room and cut == "none":
        phrase = (
            f"has {len(tokens)} tokens; '{info.name}' takes {room}. Shorten it, or send \"truncate\": true"
        )
        raise bad_field(param, phrase, "context_length_exceeded")
    kept = tuple(tokens[-room:] if cut == "start" else tokens[:room])
    check_encoded(kept, param, info)
    return kept
