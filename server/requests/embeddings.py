"""The body of /v1/embeddings, which is validated although there are no embeddings."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, RequestModel

MAX_INPUTS = 2048


def _input(given: object) -> object:
    """Text, token ids, or several of either, as OpenAI has it."""
    several = given if isinstance(given, list) else [given]
    if not several:
        raise field_error("invalid_value", "is empty")
    if len(several) > MAX_INPUTS:
        raise field_error("invalid_value", f"has {len(several)} entries; at most {MAX_INPUTS} are allowed")
    for item in several:
        is_ids = isinstance(item, list) and item and all(type(token) is int for token in item)
        if not (isinstance(item, str) or is_ids or (type(item) is int and isinstance(given, list))):
            raise field_error("invalid_type", "must be a string, token ids, or an array of either")
    return given


class EmbeddingsRequest(RequestModel):
    """The body of POST /v1/embeddings. All of it is checked, and then answered with 501."""

    input: Annotated[
        Any, BeforeValidator(_input, json_schema_input_type=str | list[str] | list[int] | list[list[int]])
    ] = Field(description="Checked; there are no embeddings here.")
    model: str | None = Field(None, description="Checked; no model here has any.")
    dimensions: int | None = Field(None, ge=1, le=INT32_MAX, description="Checked; see input.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Checked; see input.")
    user: str | None = Field(None, description="Checked; see input.")
