"""From a request's texts to their vectors or scores: encode, prompt, cut, and wait for the engine."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

from fastapi import Request, Response

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
from reprise.server.engine_types import EmbeddingEngine
from reprise.server.errors import bad_field, from_engine, from_failure
from reprise.server.fair_queue import beside
from reprise.server.generation.engine_requests.token_limits import check_encoded, check_token_ids
from reprise.server.generation.prompts.chat_prompt import TokenIds
from reprise.server.generation.service import Service
from reprise.server.http.disconnects import wait_unless_gone
from reprise.server.http.long_response import LongResponse
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.requests.embeddings import Cut, EmbeddingsRequest
from reprise.server.requests.rerank import RerankRequest
from reprise.server.threads import FORMAT

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


async def encode_inputs(
    request: Request, service: Service, body: EmbeddingsRequest
) -> tuple[EmbeddingInput, ...]:
    """Return the tokens of each text, with the prompt and the special tokens of the embedding model.

    Raises BadRequestError, and the exceptions of encode_texts().
    """
    info, embedding = service.engine.info, service.engine.info.embedding
    assert embedding
    if body.dimensions is not None and body.dimensions > embedding.dimensions:
        most = f"the vectors of '{info.name}' have {embedding.dimensions}"
        raise bad_field("dimensions", f"is {body.dimensions}; {most}. Ask for fewer, or leave it out")
    prompt = _find_prompt(request, body, info, embedding)
    texts = [prompt + one for one in body.input if isinstance(one, str)]
    encoded = iter(await service.prompts.encode_texts(request, texts))
    first_pooled = 0
    if prompt and not embedding.recipe.counts_prompt:
        (alone,) = await service.prompts.encode_texts(request, [prompt])
        first_pooled = len(embedding.before) + len(alone)
    return await beside(request, partial(_as_inputs, body, info, encoded, first_pooled))


def _as_inputs(
    body: EmbeddingsRequest, info: ModelInfo, encoded: Iterator[TokenIds], first_pooled: int
) -> tuple[EmbeddingInput, ...]:
    """Put the special tokens around texts, and cut them. Raises BadRequestError."""
    embedding, inputs = info.embedding, []
    assert embedding
    for index, one in enumerate(body.input):
        param = f"input[{index}]" if len(body.input) > 1 else "input"
        if isinstance(one, str):
            room = info.context_tokens - len(embedding.before) - len(embedding.after)
            tokens = (*embedding.before, *_cut(next(encoded), room, body.truncate, param, info))
            inputs.append(EmbeddingInput((*tokens, *embedding.after), min(first_pooled, len(tokens))))
        else:
            check_token_ids(one, param, info)
            inputs.append(EmbeddingInput(_cut(one, info.context_tokens, body.truncate, param, info)))
    return tuple(inputs)


async def encode_pairs(request: Request, service: Service, body: RerankRequest) -> tuple[EmbeddingInput, ...]:
    """Return the tokens of each pair of query and document, as the ranking model takes them.

    Raises as encode_inputs() does.
    """
    info, embedding = service.engine.info, service.engine.info.embedding
    assert embedding
    head = body.query
    if embedding.pair:
        head = embedding.pair.format(query=body.query, instruction=body.instruction or embedding.instruction)
    elif body.instruction is not None:
        note_ignored(request, ["instruction"])
    (query,) = await service.prompts.encode_texts(request, [head])
    documents: Sequence[str] = body.documents
    if embedding.pair:
        # As one text: a document's first token may begin with the space before it.
        documents = [f"{head} {document}" for document in documents]
    encoded = await service.prompts.encode_texts(request, documents)
    return await beside(request, partial(_as_pairs, body, info, query, encoded))


def _as_pairs(
    body: RerankRequest, info: ModelInfo, query: TokenIds, documents: Sequence[TokenIds]
) -> tuple[EmbeddingInput, ...]:
    """Put the query before each document, unless it is there, and the special tokens around both.

    Raises BadRequestError.
    """
    embedding = info.embedding
    assert embedding
    check_encoded(query, "query", info)
    head = (*embedding.before, *query, *embedding.between)
    num_there = len(query) if embedding.pair else 0
    room = info.context_tokens - len(head) - len(embedding.after)
    if room < 1:
        most = info.context_tokens - len(head) + len(query) - len(embedding.after) - 1
        phrase = f"has {len(query)} tokens; this model takes {most} with a document. Shorten it"
        raise bad_field("query", phrase, "context_length_exceeded")
    limit = min(room, body.max_tokens_per_doc or room)
    pairs = []
    for index, text in enumerate(documents):
        document = text[num_there:][: body.max_tokens_per_doc]
        cut = _cut(document, limit, body.truncate, f"documents[{index}]", info)
        pairs.append(EmbeddingInput((*head, *cut, *embedding.after), first_of_second=len(head)))
    return tuple(pairs)


async def answer(
    request: Request,
    service: Service,
    inputs: tuple[EmbeddingInput, ...],
    write: Callable[[Sequence[bytes], int], bytes],
    dimensions: int | None = None,
) -> Response:
    """Embed or score inputs and respond with the JSON that write() makes of the vectors. Raises as embed().

    write: called on a thread with the vectors, one for each input, and the number of tokens of all inputs.
    """
    numbers = await embed(request, service, inputs, dimensions)
    return LongResponse(await FORMAT.run(write, numbers, sum(len(one.tokens) for one in inputs)))


async def embed(
    request: Request,
    service: Service,
    inputs: tuple[EmbeddingInput, ...],
    dimensions: int | None = None,
) -> tuple[bytes, ...]:
    """Return the vector of each input, or its score as a vector of one number, in little-endian float32.

    Raises ApiError if the engine refuses or fails, and ClientGoneError if the client disconnects.
    """
    engine = cast("EmbeddingEngine", service.engine)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Embedded | Failed] = loop.create_future()

    def note(event: Embedded | Failed) -> None:
        if not done.done():
            done.set_result(event)

    num_alike = await beside(request, partial(count_alike, inputs))
    asked = EmbeddingRequest(record_of(request).engine_request_id, inputs, dimensions, num_alike)
    try:
        engine.embed(asked, lambda event: service.call_on_loop(lambda: note(event)))
    except EngineError as fault:
        raise from_engine(fault) from fault
    try:
        await wait_unless_gone(done, request.receive)
    finally:
        if not done.done():
            engine.cancel(asked.id)
    if isinstance(event := done.result(), Failed):
        raise from_failure(event, "input")
    return event.vectors


def _find_prompt(request: Request, body: EmbeddingsRequest, info: ModelInfo, embedding: EmbeddingInfo) -> str:
    """Return the text that goes before every text of a request. Raises BadRequestError."""
    prompts = embedding.recipe.prompts
    of_query = next((prompts[name] for name in _SAME["query"] if name in prompts), "")
    if body.instruction is not None:
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
    """Return the tokens that fit.

    Raises BadRequestError for too many, if none may be cut off, and for those that the weights lack.
    """
    if len(tokens) > room and cut == "none":
        phrase = (
            f"has {len(tokens)} tokens; '{info.name}' takes {room}. Shorten it, or send \"truncate\": true"
        )
        raise bad_field(param, phrase, "context_length_exceeded")
    kept = tuple(tokens[-room:] if cut == "start" else tokens[:room])
    check_encoded(kept, param, info)
    return kept
