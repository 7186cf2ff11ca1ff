"""POST /infill."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import to_json

from reprise.server.generation.answer import answer
from reprise.server.generation.prepare import prepare_infill
from reprise.server.generation.service import lease_for
from reprise.server.http.body import read_body
from reprise.server.http.error_responses import server_sent_event
from reprise.server.http.openapi import body_schema
from reprise.server.output.parts import ChoiceOutput, EndPart, Events, Part, TextPart
from reprise.server.output.presenter import Json, OneChoicePresenter
from reprise.server.prompt.encoder import Hole
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.fields import RequestModel, field_error, unsupported

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
    input_extra: Annotated[list[ExtraFile], Field(max_length=MAX_EXTRA)] = Field([])
    """Other files for the model to know, the nearest last."""

    suffix: unsupported(  # type: ignore[valid-type]
        "", phrase="is not supported here; send input_suffix", is_needed=True
    ) = None
    echo: unsupported(False) = False  # type: ignore[valid-type]
    logprobs: unsupported(0) = None  # type: ignore[valid-type]


class InfillPresenter(OneChoicePresenter):
    """Presenter for /infill. Of several choices, the first is the answer.

    model: the model's name. is_silent: whether the client wants no text, only the prompt to be cached.
    """

    def __init__(self, model: str, is_silent: bool = False) -> None:
        self._model = model
        self._is_silent = is_silent
        self._first_end = EndPart("stop")

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter."""
        return to_json(self._end(outputs[0].text, outputs[0].end, usage, timings))

    def _frames(self, events: Events) -> bytes:
        return super()._frames([event for event in events if event[0] == 0])

    def _part(self, part: Part) -> bytes:
        if isinstance(part, EndPart):
            self._first_end = part
        if not isinstance(part, TextPart) or not part.text or self._is_silent:
            return b""
        return server_sent_event(to_json({"index": 0, "content": part.text, "stop": False}))

    def _ending(self, _end: EndPart, usage: Json, timings: Json) -> bytes:
        # The last to end may be another choice.
        return server_sent_event(to_json(self._end("", self._first_end, usage, timings)))

    def _end(self, text: str, end: EndPart, usage: Json, timings: Json) -> Json:
        is_cut = end.finish_reason == "length"
        return {
            "index": 0,
            "content": "" if self._is_silent else text,
            "model": self._model,
            "stop": True,
            "stop_type": "limit" if is_cut else "word" if end.stop else "eos",
            "stopping_word": end.stop or "",
            "tokens_predicted": usage["completion_tokens"],
            "tokens_evaluated": usage["prompt_tokens"],
            "tokens_cached": usage["prompt_tokens_details"]["cached_tokens"],
            "truncated": False,
            "timings": timings,
        }


router = APIRouter()
BODIES = (InfillRequest,)


@router.post("/infill", openapi_extra=body_schema(InfillRequest))
async def infill(request: Request) -> Response:
    """Fill in the text between two texts, for models with fill-in-the-middle tokens."""
    body = await read_body(request, InfillRequest)
    leased = await lease_for(request, body)
    model = body.model or leased.name
    others = [(file.filename, file.text) for file in body.input_extra]
    hole = Hole(f"{body.input_prefix}{body.prompt[0]}", body.input_suffix, others)
    prepare = partial(prepare_infill, request, leased, body, [hole], model, "input_suffix")
    return await answer(request, leased, prepare, InfillPresenter(model, body.is_scoring))
