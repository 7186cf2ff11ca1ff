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
from server.request_log import record_of
from server.responses import PromptTokensDetails, UsageBlock
from server.schemas import GenerationFields
from server.service import Service
from server.streams import TokenStream, write_frames
from server.submission import Submission


async def respond(
    request: Request,
    service: Service,
    body: GenerationFields,
    dialect: Dialect,
    prompts: Sequence[TokenIds],
    service_tier: str | None = None,
) -> Response:
    """Generate, and answer at once or as a stream. Raises ApiError while the status can still say so."""
    record = record_of(request)
    orders = make_orders(record.id, body, prompts, service.engine.info, service.settings)
    heading = Heading(
        id=record.id.removeprefix("req-"),
        created=int(time.time()),
        model=service.check_model(body.model),
        system_fingerprint=service.fingerprint,
        service_tier=service_tier,
    )
    submission = Submission(service.engine, service.post_office, orders, service.settings.keep_alive_s)
    usage = partial(count_usage, submission, body.n)
    submission.start(is_streaming=body.stream)
    finish = partial(_finish, submission, body.n, record)
    is_handed_over = False
    try:
        async with submission.watching(request.receive):
            if not body.stream:
                texts = await submission.answers()
                reasons = submission.finish_reasons
                choices = [dialect.answer(i, text, reasons[i]) for i, text in enumerate(texts)]
                answer = heading.answer(dialect, choices, usage())
                return Response(answer.to_json(), media_type="application/json")
            first = await submission.receive()
        writer = ChunkWriter(heading, dialect, len(orders), body.wants_usage_chunk)
        frames = write_frames(submission, writer, first, usage if body.wants_usage_chunk else None)
        is_handed_over = True
        return TokenStream(frames, at_end=finish)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not is_handed_over:
            await finish()


def count_usage(submission: Submission, n: int) -> UsageBlock:
    """Count tokens over all choices; each prompt, and what was cached of it, once for its n choices."""
    num_prompt = sum(len(order.prompt) for order in submission.orders[::n])
    num_cached = sum(usage.num_cached_tokens for index, usage in submission.ended.items() if index % n == 0)
    num_completion = sum(usage.num_completion_tokens for usage in submission.ended.values())
    return UsageBlock(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )


async def _finish(submission: Submission, n: int, record: RequestRecord) -> None:
    """Free what still runs, and note in the log record how it all ended."""
    has_failed = submission.has_failed
    await submission.close()
    counts = count_usage(submission, n)
    record.num_prompt_tokens = counts.prompt_tokens
    record.num_completion_tokens = counts.completion_tokens
    record.num_cached_tokens = counts.prompt_tokens_details.cached_tokens
    if submission.is_complete:
        record.finish_reason = " ".join(submission.finish_reasons[i] for i in range(len(submission.orders)))
    else:
        record.finish_reason = "error" if has_failed else "cancelled"
    begun = [usage for usage in submission.ended.values() if usage.num_completion_tokens]
    if begun:
        record.first_token_ms = 1000 * min(usage.first_token_s for usage in begun)
        decode_s = max(usage.total_s for usage in begun) - record.first_token_ms / 1000
        later = counts.completion_tokens - len(begun)
        record.tokens_per_s = later / decode_s if later > 0 and decode_s > 0 else None
