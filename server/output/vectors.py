"""Write vectors and scores as JSON, a vector at a time: other threads run in between."""

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal

from pydantic_core import to_json

FLOAT_BYTES = 4


def numbers_of(vector: bytes) -> list[float]:
    """Return the numbers of a vector of little-endian float32 numbers."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def write_numbers(vector: bytes) -> bytes:
    """Write the numbers of a vector as a JSON array."""
    return to_json(numbers_of(vector))


def write_embeddings(
    vectors: Sequence[bytes], encoding_format: Literal["float", "base64"], model: str, num_tokens: int
) -> bytes:
    """Write OpenAI's response. May take long. num_tokens: of all texts."""
    parts = []
    for index, vector in enumerate(vectors):
        shown = b64encode(vector).decode() if encoding_format == "base64" else numbers_of(vector)
        parts.append(to_json({"object": "embedding", "index": index, "embedding": shown}))
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    rest = to_json({"model": model, "usage": usage})
    return b'{"object":"list","data":[' + b",".join(parts) + b"]," + rest[1:]


def write_ranking(
    scores: Sequence[float],
    documents: Sequence[str] | None,
    top_n: int | None,
    request_id: str,
    model: str,
    num_tokens: int,
) -> bytes:
    """Write a rerank response with the fields of both Jina's and Cohere's, the best documents first.

    Without documents it has Voyage's too (data), which Continue reads.
    documents: their texts, to be returned too; None if they are not. num_tokens: of all pairs.
    """
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": documents[index]}} if documents is not None else {})
        for index in order
    ]
    return to_json(
        {
            "id": request_id,
            "object": "list",
            "model": model,
            "results": results,
            **({"data": results} if documents is None else {}),
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }
    )
