"""Write vectors and scores as JSON, a vector at a time: other threads run in between."""

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal

from pydantic_core import to_json

FLOAT_BYTES = 4


def numbers_of(vector: bytes) -> list[float]:
    """Convert a vector from bytes, little-endian float32, to a list of numbers."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def write_numbers(vector: bytes) -> bytes:
    """Write a vector, little-endian float32, as a JSON array."""
    return to_json(numbers_of(vector))


def write_embeddings(
    vectors: Sequence[bytes], num_tokens: int, encoding_format: Literal["float", "base64"], model: str
) -> bytes:
    """Write the JSON response of /v1/embeddings. May take long.

    vectors: (num_texts,) little-endian float32. num_tokens: the tokens of all texts together.
    """
    parts = []
    for index, vector in enumerate(vectors):
        shown = b64encode(vector).decode() if encoding_format == "base64" else numbers_of(vector)
        parts.append(to_json({"object": "embedding", "index": index, "embedding": shown}))
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    rest = to_json({"model": model, "usage": usage})
    return b'{"object":"list","data":[' + b",".join(parts) + b"]," + rest[1:]


def write_ranking(
    rated: Sequence[bytes],
    num_tokens: int,
    *,
    documents: Sequence[str] | None,
    top_n: int | None,
    request_id: str,
    model: str,
) -> bytes:
    """Write a JSON response that has both Jina's and Cohere's rerank fields, with the best documents first.

    Unless documents are returned it has Voyage's field (data) too, which Continue reads.
    rated: (num_documents,) scores, each as a vector of one number. num_tokens: the tokens of all pairs.
    documents: the documents' texts, to be returned too; None to return only indices and scores.
    """
    scores = [number for one in rated for number in numbers_of(one)]
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
