"""From token ids to a response: what both kinds of completion do alike."""

import time
from collections.abc import Sequence
from functools import partial

from fastapi import Request, Response

from server.chunks import ChunkWriter
from server.dialects import Dialect, Heading
from server.errors import CLIENT_CLOSED_REQUEST, ClientGoneError
from server.logs import RequestRecord
from server.orders import make_orders
from server.prompts import TokenIds
from server.report import count_usage, note_in_record, time_sequences
from server.request_log import record_of
from server.responses import Timings
from server.schemas import GenerationFields
from server.service import Service
from server.streams import TokenStream, write_frames
from server.submission import Submission
from server.tenants import tenant_of


async def respond(
    request: Request,
    service: Service,
    body: GenerationFields,
    dialect: Dialect,
    prompts: Sequence[TokenIds],
    prediction: TokenIds = (),
    service_tier: str | None = None,
) -> Response:
    """Generate, and answer at once or as a stream. Raises ApiError while the status can still say so."""
    record = record_of(request)
    tenant = tenant_of(request, service.settings)
    orders = make_orders(record.id, body, prompts, service.engine.info, service.settings, prediction, tenant)
    heading = Heading(
        id=record.id.removeprefix("req-"),
        created=int(time.time()),
        model=service.check_model(body.model),
        system_fingerprint=service.fingerprint,
        service_tier=service_tier,
    )
    submission = Submission(service.engine, service.post_office, orders, service.settings.keep_alive_s)
    usage = partial(count_usage, orders, submission.ended, body.n)
    timings = partial(_time, submission)
    submission.start(is_streaming=body.stream)
    finish = partial(_finish, submission, body.n, service, record)
    is_handed_over = False
    try:
        async with submission.watching(request.receive):
            if not body.stream:
                texts = await submission.answers()
                reasons = submission.finish_reasons
                choices = [dialect.answer(i, text, reasons[i]) for i, text in enumerate(texts)]
                answer = heading.answer(dialect, choices, usage(), timings())
                return Response(answer.to_json(), media_type="application/json")
            first = await submission.receive()
        writer = ChunkWriter(heading, dialect, len(orders), body.wants_usage_chunk)
        counts = usage if body.wants_usage_chunk else None
        frames = write_frames(submission, writer, first, counts, timings)
        is_handed_over = True
        return TokenStream(frames, at_end=finish)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not is_handed_over:
            await finish()


def _time(submission: Submission) -> Timings:
    return time_sequences([submission.ended[index] for index in range(len(submission.orders))])


async def _finish(submission: Submission, n: int, service: Service, record: RequestRecord) -> None:
    """Free what still runs, and note in the log record and the metrics how it all ended."""
    has_failed = submission.has_failed
    await submission.close()
    note_in_record(record, submission.orders, submission.ended, n)
    service.metrics.count_sequences(
        submission.ended.values(), record.num_prompt_tokens, record.num_cached_tokens
    )
    if submission.is_complete:
        record.finish_reason = " ".join(submission.finish_reasons[i] for i in range(len(submission.orders)))
    else:
        record.finish_reason = "error" if has_failed else "cancelled"
