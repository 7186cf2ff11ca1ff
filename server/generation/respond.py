"""Convert token ids into a response: the steps shared by all endpoints that generate."""

import time
from functools import partial
from typing import get_args

from fastapi import Request, Response

from reprise.config.settings import Settings
from reprise.engine.interface.models import ModelInfo
from reprise.engine.interface.request import DraftType
from reprise.server.errors import CLIENT_CLOSED_REQUEST, BadRequestError, ClientGoneError, bad_field
from reprise.server.fair_queue import SMALL_BYTES
from reprise.server.generation.engine_requests.choices import Prompts, make_engine_requests
from reprise.server.generation.record_lines import record_choices
from reprise.server.generation.request_output import RequestOutput
from reprise.server.generation.service import Service
from reprise.server.generation.sse import TokenStream, write_frames
from reprise.server.generation.submission import Submission
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.http.tenants import tenant_of
from reprise.server.output.openai_format import ResponseHead
from reprise.server.output.parsing.parts import MakeParser
from reprise.server.output.presenter import Presenter
from reprise.server.requests.generation_fields import GenerationFields
from reprise.server.requests.window_fields import WindowFields

_OF_MODELS = ("draft-model", "mtp", "dflash", "wedlm")
"""Draft types that depend on the models served."""


async def respond(
    request: Request,
    service: Service,
    body: GenerationFields,
    prompts: Prompts,
    presenter: Presenter,
    make_parser: MakeParser,
) -> Response:
    """Generate a whole response or a stream. Raises ApiError before any of the response is sent."""
    record = record_of(request)
    body = _without_what_is_not_here(request, service, body)
    tenant = tenant_of(request, service.settings)
    engine_requests = make_engine_requests(
        record.engine_request_id,
        body,
        prompts,
        service.engine.info,
        service.settings,
        tenant,
    )
    submission = Submission(service, engine_requests, body.n, _grammar_param(body), prompts.make_views)
    output = RequestOutput(service, record, submission, make_parser, body)
    submission.start(is_streaming=body.stream)

    async def end() -> None:
        await output.close()
        record_choices(service, body, submission)

    is_handed_over = False
    try:
        async with submission.client.watching(request.receive):
            if not body.stream:
                outputs = await output.wait_for_choices()
                write = partial(presenter.format_response, outputs, output.usage(), output.timings())
                # Some repeat what is in the request.
                is_long = len(await request.body()) > SMALL_BYTES
                whole = await output.format(write, is_long=is_long)
                return Response(whole, media_type="application/json")
            first = await output.receive()
        frames = write_frames(output, presenter, first)
        is_handed_over = True
        return TokenStream(frames, at_end=end)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not is_handed_over:
            await end()


def _without_what_is_not_here(request: Request, service: Service, body: GenerationFields) -> GenerationFields:
    """Leave out a source of drafts, or a kind of decoding, that is not here and would only be faster."""
    info, is_strict = service.engine.info, service.settings.unknown_fields == "refuse"
    if (fault := _draft_fault(body, service.settings, info)) is not None:
        if is_strict:
            raise fault
        note_ignored(request, ["draft.type"])
        body = body.model_copy(update={"draft": body.draft.model_copy(update={"type": None})})
    of_wedlm = [name for name in WindowFields.model_fields if getattr(body, name) is not None]
    if of_wedlm and info.mask_token_id is None and not is_strict:
        note_ignored(request, of_wedlm)
        body = body.model_copy(update=dict.fromkeys(of_wedlm))
    return body


def _draft_fault(body: GenerationFields, settings: Settings, info: ModelInfo) -> BadRequestError | None:
    """Return the fault of the source of drafts that a request names; None if the server has that source."""
    kind, missing, remedy = body.draft.type, "", ""
    if kind == "draft-model" and (settings.draft_model is None or info.head):
        missing, remedy = "has no draft model", ", or start the server with --draft-model"
    if kind in ("mtp", "dflash") and info.head != kind:
        missing = "serves no model with an MTP head" if kind == "mtp" else "has no DFlash drafter"
        remedy = ", or start the server with --draft-model and the folder of one"
    if kind == "wedlm" and info.mask_token_id is None:
        missing = "serves no WeDLM model"
    if not missing:
        return None
    drafters = ", ".join(one for one in get_args(DraftType) if one not in _OF_MODELS)
    phrase = f"is '{kind}', but this server {missing}; use one of {drafters}{remedy}"
    return bad_field("draft.type", phrase, "no_draft_model")


def _grammar_param(body: GenerationFields) -> str:
    """Return the field that a request's grammar comes from. Without a constraint it can only be the tools."""
    return body.requested_grammar[1] if body.requested_grammar else "tools"


def response_head(
    request: Request, service: Service, model: str | None, service_tier: str | None = None
) -> ResponseHead:
    """Return the head of the response to a request. Raises ModelNotFoundError."""
    return ResponseHead(
        id=record_of(request).unique,
        created=int(time.time()),
        model=service.check_model(model),
        system_fingerprint=service.fingerprint,
        service_tier=service_tier,
    )
