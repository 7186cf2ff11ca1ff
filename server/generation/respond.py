"""Turn token ids into a response: the steps shared by all endpoints that generate."""

import time
from collections.abc import Sequence
from functools import partial

from fastapi import Request, Response

from engine.request import Grammar, View
from server.errors import CLIENT_CLOSED_REQUEST, ClientGoneError
from server.generation.engine_requests import make_engine_requests
from server.generation.prompts import TokenIds
from server.generation.record_lines import record_choices
from server.generation.request_output import RequestOutput
from server.generation.service import Service
from server.generation.sse import TokenStream, write_frames
from server.generation.submission import Submission
from server.http.request_log import record_of
from server.http.tenants import tenant_of
from server.output.openai_format import ResponseHead
from server.output.parts import MakeParser
from server.output.presenter import Presenter
from server.requests.generation_fields import GenerationFields


async def respond(
    request: Request,
    service: Service,
    body: GenerationFields,
    presenter: Presenter,
    prompts: Sequence[TokenIds],
    make_parser: MakeParser,
    prediction: TokenIds = (),
    grammar: Grammar | None = None,
    head_tokens: int = 0,
    views: Sequence[View] = (),
) -> Response:
    """Generate a whole response or a stream. Raises ApiError before any of the response is sent."""
    record = record_of(request)
    tenant = tenant_of(request, service.settings)
    engine_requests = make_engine_requests(
        record.engine_request_id,
        body,
        prompts,
        service.engine.info,
        service.settings,
        prediction,
        tenant,
        grammar,
        head_tokens,
        views,
    )
    submission = Submission(service, engine_requests, body.n, _grammar_param(body))
    output = RequestOutput(service, record, submission, make_parser, body)
    submission.start(is_streaming=body.stream)

    async def end() -> None:
        await output.close()
        record_choices(service, body, submission)

    is_handed_over = False
    try:
        async with submission.watching(request.receive):
            if not body.stream:
                outputs = await output.wait_for_choices()
                write = partial(presenter.format_response, outputs, output.usage(), output.timings())
                whole = await output.format(write)
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
