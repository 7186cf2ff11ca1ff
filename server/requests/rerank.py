"""The body of /v1/rerank, /rerank and /v2/rerank, in the shapes of Jina and Cohere."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from reprise.server.requests.embeddings import MAX_INSTRUCTION_CHARACTERS, Truncate
from reprise.server.requests.models import KeepAlive
from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import INT32_MAX, AcceptsPeerFields

MAX_DOCUMENTS = 2048


def _documents(given: object) -> tuple[str, ...]:
    """Return the documents' texts, of strings or of objects with a text."""
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of texts")
    if not 1 <= len(given) <= MAX_DOCUMENTS:
        phrase = f"has {len(given)} entries; from 1 to {MAX_DOCUMENTS} are allowed"
        raise field_error("invalid_value", phrase)
    return tuple(_document(one, f"[{index}]") for index, one in enumerate(given))


def _document(given: Any, at: str) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise field_error("invalid_type", "must be a string, or an object with a text", at)
    if not text:
        raise field_error("invalid_value", "is empty; leave it out, or send a text", at)
    return text


_Text = Annotated[str, Field(min_length=1)]


class RerankRequest(AcceptsPeerFields):
    """The body of POST /v1/rerank, /rerank and /v2/rerank."""

    query: _Text = Field(description="What the documents are to answer.")
    documents: Annotated[
        tuple[str, ...],
        BeforeValidator(
            _documents,
            json_schema_input_type=Annotated[
                list[_Text | dict[str, Any]], Field(min_length=1, max_length=MAX_DOCUMENTS)
            ],
        ),
    ] = Field(description=f"Up to {MAX_DOCUMENTS} texts, or objects with a text.")
    model: str | None = Field(
        None, description="By default --rerank-model, or else the model that the server started with."
    )
    top_n: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Return only so many of the best. By default all."
    )
    return_documents: bool = Field(False, description="Also return the documents' texts.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Cut documents after so many tokens. Cohere's."
    )
    instruction: str | None = Field(
        None,
        max_length=MAX_INSTRUCTION_CHARACTERS,
        description="What the query is for, for models that are told so (Qwen3-Reranker).",
    )
    truncate: Truncate = Field(
        "end",
        description="Cut documents that are too long, as Jina and Cohere do; false or NONE: they are a 400.",
    )
    keep_alive: KeepAlive = None
