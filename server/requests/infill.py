"""The body of /infill, which llama-server has and editors use."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from reprise.server.requests.completions import CompletionRequest
from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import RequestModel, unsupported

MAX_EXTRA = 1024


class ExtraFile(RequestModel):
    """Another file, or a part of one."""

    filename: str = Field("", description="The file's name, which the model is shown.")
    text: str = Field(description="The file's text.")


def _one_text(given: object) -> list[str]:
    if not isinstance(given, str):
        raise field_error("invalid_type", "must be a string")
    return [given]


class InfillRequest(CompletionRequest):
    """The body of POST /infill. Its other fields are those of completions."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_one_text, json_schema_input_type=str)] = Field(
        [""], description="Text that follows input_prefix, such as the beginning of the cursor's line."
    )
    input_prefix: str = Field("", description="The text before the hole.")
    input_suffix: str = Field("", description="The text after the hole.")
    input_extra: Annotated[list[ExtraFile], Field(max_length=MAX_EXTRA)] = Field(
        [], description="Other files for the model to know, the nearest last."
    )

    suffix: unsupported(  # type: ignore[valid-type]
        "", phrase="is not supported here; send input_suffix", is_needed=True
    ) = None
    echo: unsupported(False) = False  # type: ignore[valid-type]
    logprobs: unsupported(0) = None  # type: ignore[valid-type]
