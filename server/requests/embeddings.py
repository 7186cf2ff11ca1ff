"""The bodies of requests to embed texts and to rank documents."""

from typing import Annotated, Any, Literal

from pydantic import Field

from reprise.server.requests.fields import INT32_MAX, AcceptsPeerFields, check_num, field_error, read_by
from reprise.server.requests.generation_fields import KeepAlive

MAX_INPUTS = MAX_DOCUMENTS = 2048
MAX_INSTRUCTION_CHARACTERS = 10_000

Text = str | tuple[int, ...]
"""A text, or its token ids."""

Cut = Literal["none", "start", "end"]
"""The part that a too long text loses: nothing, its start or its end."""


def read_inputs(given: object) -> tuple[Text, ...]:
    """Return the texts of an OpenAI input: a string, token ids, or an array of either."""
    if not isinstance(given, list):
        return (_text(given, ""),)
    if not given:
        raise field_error("invalid_value", "is empty; send at least one text")
    if _is_ids(given):
        return (tuple(given),)
    check_num(given, MAX_INPUTS)
    return tuple(_text(one, f"[{index}]") for index, one in enumerate(given))


def _is_ids(given: object) -> bool:
    return isinstance(given, list) and all(type(token) is int for token in given)


def _text(given: object, at: str) -> Text:
    if not (isinstance(given, str) or _is_ids(given)):
        raise field_error("invalid_type", "must be a string, or an array of token ids", at)
    if not given:
        raise field_error("invalid_value", "is empty; leave it out, or send a text", at)
    return given if isinstance(given, str) else tuple(given)  # type: ignore[arg-type]


def _read_cut(given: object) -> Cut:
    """Return the end at which a text is cut, for a boolean or Cohere's NONE, START and END."""
    cuts: dict[object, Cut] = {True: "end", False: "none", "none": "none", "start": "start", "end": "end"}
    found = cuts.get(given.lower() if isinstance(given, str) else given if isinstance(given, bool) else None)
    if found is None:
        raise field_error("invalid_value", 'must be a boolean, or "NONE", "START" or "END"')
    return found


_GivenCut = bool | Literal["NONE", "START", "END", "none", "start", "end"]
Truncate = Annotated[Cut, read_by(_read_cut, _GivenCut)]
_Ids = Annotated[list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1)]
_String = Annotated[str, Field(min_length=1)]
_Several = Annotated[list[_String | _Ids], Field(min_length=1, max_length=MAX_INPUTS)]
Inputs = Annotated[tuple[Text, ...], read_by(read_inputs, _String | _Ids | _Several)]


class EmbeddingsRequest(AcceptsPeerFields):
    """The body of POST /v1/embeddings."""

    input: Inputs = Field(
        description=f"A text, its token ids, or an array of up to {MAX_INPUTS} of either. Token ids are used "
        "as they are, without prompt and special tokens."
    )
    model: str | None = None
    """By default --embedding-model, or else the model that the server started with."""
    dimensions: int | None = Field(None, ge=1, le=INT32_MAX)
    """Keep this many leading numbers, and normalize again."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: of little-endian float32 numbers."""
    prompt_name: str | None = None
    """Name of one of the model's prompts, which goes before every text. See /v1/models."""
    input_type: Literal["query", "document", "passage", "search_query", "search_document"] | None = None
    """What the texts are: chooses the model's prompt for queries or documents, if any."""
    instruction: str | None = Field(None, max_length=MAX_INSTRUCTION_CHARACTERS)
    """What a query is for, in the model's own form, in place of its prompt for queries. Not for documents."""
    truncate: Truncate = "none"
    """Cut a text that is too long: true or END at its end, START at its start. By default it is a 400."""
    user: str | None = None
    """Accepted; it has no effect."""
    keep_alive: KeepAlive = None


def _documents(given: object) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of texts")
    if not 1 <= len(given) <= MAX_DOCUMENTS:
        phrase = f"has {len(given)} entries; from 1 to {MAX_DOCUMENTS} are allowed"
        raise field_error("invalid_value", phrase)
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in given]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise field_error("invalid_type", "must be a string, or an object with a text", f"[{index}]")
        _text(text, f"[{index}]")
    return tuple(texts)


class RerankRequest(AcceptsPeerFields):
    """The body of POST /v1/rerank, /rerank and /v2/rerank."""

    query: _String
    """What the documents are to answer."""
    documents: Annotated[
        tuple[str, ...],
        read_by(
            _documents,
            Annotated[list[_String | dict[str, Any]], Field(min_length=1, max_length=MAX_DOCUMENTS)],
        ),
    ] = Field(description=f"Up to {MAX_DOCUMENTS} texts, or objects with a text.")
    model: str | None = None
    """By default --rerank-model, or else the model that the server started with."""
    top_n: int | None = Field(None, ge=1, le=INT32_MAX)
    """Return only so many of the best. By default all."""
    return_documents: bool = False
    """Also return the documents' texts."""
    max_tokens_per_doc: int | None = Field(None, ge=1, le=INT32_MAX)
    """Cut documents after so many tokens. Cohere's."""
    instruction: str | None = Field(None, max_length=MAX_INSTRUCTION_CHARACTERS)
    """What the query is for, for models that are told so (Qwen3-Reranker)."""
    truncate: Truncate = "end"
    """Cut documents that are too long, as Jina and Cohere do; false or NONE: they are a 400."""
    keep_alive: KeepAlive = None
