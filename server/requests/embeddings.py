"""The body of /v1/embeddings: OpenAI's, with prompts and truncation as other servers have them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from reprise.server.requests.models import KeepAlive
from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import INT32_MAX, AcceptsPeerFields

MAX_INPUTS = 2048
MAX_INSTRUCTION_CHARACTERS = 10_000

Text = str | tuple[int, ...]
"""A text, or its token ids."""

Cut = Literal["none", "start", "end"]
"""The part that a too long text loses: nothing, its start or its end."""


def read_inputs(given: object) -> tuple[Text, ...]:
    """Return the texts of a string, token ids, or an array of either, as OpenAI has them."""
    if isinstance(given, list) and given and all(type(token) is int for token in given):
        return (tuple(given),)
    several = given if isinstance(given, list) else [given]
    if not several:
        raise field_error("invalid_value", "is empty; send at least one text")
    if len(several) > MAX_INPUTS:
        raise field_error("invalid_value", f"has {len(several)} entries; at most {MAX_INPUTS} are allowed")
    return tuple(
        _text(item, f"[{index}]" if isinstance(given, list) else "") for index, item in enumerate(several)
    )


def _text(given: object, at: str) -> Text:
    is_ids = isinstance(given, list) and all(type(token) is int for token in given)
    if not (isinstance(given, str) or is_ids):
        raise field_error("invalid_type", "must be a string, or an array of token ids", at)
    if not given:
        raise field_error("invalid_value", "is empty; leave it out, or send a text", at)
    return given if isinstance(given, str) else tuple(given)  # type: ignore[arg-type]


def _cut(given: object) -> Cut:
    """Return the end at which a text is cut, for a boolean or Cohere's NONE, START and END."""
    cuts: dict[object, Cut] = {True: "end", False: "none", "none": "none", "start": "start", "end": "end"}
    found = cuts.get(given.lower() if isinstance(given, str) else given if isinstance(given, bool) else None)
    if found is None:
        raise field_error("invalid_value", 'must be a boolean, or "NONE", "START" or "END"')
    return found


Truncate = Annotated[
    Cut,
    BeforeValidator(
        _cut, json_schema_input_type=bool | Literal["NONE", "START", "END", "none", "start", "end"]
    ),
]
_Ids = Annotated[list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1)]
_String = Annotated[str, Field(min_length=1)]
Inputs = Annotated[
    tuple[Text, ...],
    BeforeValidator(
        read_inputs,
        json_schema_input_type=_String
        | _Ids
        | Annotated[list[_String | _Ids], Field(min_length=1, max_length=MAX_INPUTS)],
    ),
]


class EmbeddingsRequest(AcceptsPeerFields):
    """The body of POST /v1/embeddings."""

    input: Inputs = Field(
        description=f"A text, its token ids, or an array of up to {MAX_INPUTS} of either. Token ids are used "
        "as they are, without prompt and special tokens."
    )
    model: str | None = Field(
        None, description="By default --embedding-model, or else the model that the server started with."
    )
    dimensions: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Keep this many leading numbers, and normalize again."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: of little-endian float32 numbers."
    )
    prompt_name: str | None = Field(
        None, description="Name of one of the model's prompts, which goes before every text. See /v1/models."
    )
    input_type: Literal["query", "document", "passage", "search_query", "search_document"] | None = Field(
        None, description="What the texts are: chooses the model's prompt for queries or documents, if any."
    )
    instruction: str | None = Field(
        None,
        max_length=MAX_INSTRUCTION_CHARACTERS,
        description="What a query is for, in the model's own form, in place of its prompt for queries.",
    )
    truncate: Truncate = Field(
        "none",
        description="Cut a text that is too long: true or END at its end, START at its start. By default it "
        "is a 400.",
    )
    user: str | None = Field(None, description="Accepted; it has no effect.")
    keep_alive: KeepAlive = None
