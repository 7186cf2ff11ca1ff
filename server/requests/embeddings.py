"""The body of /v1/embeddings, which is validated although this server has no embeddings."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, RequestModel

MAX_INPUTS = 2048


def _input(given: object) -> object:
    """Accept a string, token ids, or an array of either, as OpenAI does."""
    several = given if isinstance(given, list) else [given]
    if not several:
        raise field_error("invalid_value", "is empty; send at least one text")
    if len(several) > MAX_INPUTS:
        raise field_error("invalid_value", f"has {len(several)} entries; at most {MAX_INPUTS} are allowed")
    for item in several:
        is_ids = isinstance(item, list) and item and all(type(token) is int for token in item)
        if not (isinstance(item, str) or is_ids or (type(item) is int and isinstance(given, list))):
            raise field_error("invalid_type", "must be a string, token ids, or an array of either")
    return given


class EmbeddingsRequest(RequestModel):
    """The body of POST /v1/embeddings. It is validated, then answered with 501."""

    input: Annotated[
        Any, BeforeValidator(_input, json_schema_input_type=str | list[str] | list[int] | list[list[int]])
    ] = Field(description="Validated only: the endpoint always answers 501.")
    model: str | None = Field(None, description="Validated only.")
    dimensions: int | None = Field(None, ge=1, le=INT32_MAX, description="Validated only.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Validated only.")
    user: str | None = Field(None, description="Validated only.")
