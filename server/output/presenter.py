"""What formats answers for an API, and the counts and times that it reports."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reprise.engine.interface.events import Usage
from reprise.engine.interface.request import GenerationRequest, WindowSettings
from reprise.server.errors import ApiError
from reprise.server.logs import RequestRecord
from reprise.server.output.openai_objects import (
    CompletionTokensDetails,
    DraftCounts,
    GateBlock,
    PromptTokensDetails,
    Timings,
    TranslationBlock,
    UsageBlock,
    WindowBlock,
)
from reprise.server.output.parts import ChoiceOutput, Part

Events = Sequence[tuple[int, Part]]
"""(index of the choice, part), in order of arrival."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that the response to a request, or each of its chunks, starts with.

    service_tier: None if the request named no tier; the field is then not sent.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None


KEEP_ALIVE = b": keep-alive\n"
"""A comment, which no client shows. After an empty line, several decoders would see an empty event."""


class Presenter(Protocol):
    """Formats the output of one request, as a whole response or as server-sent events."""

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """Return the JSON body of a response that is not streamed.

        outputs: one for each choice.
        """

    def format_opening(self, usage: UsageBlock) -> bytes:
        """Return the events that precede all parts.

        usage: at this point it has only the prompt's token count.
        """

    def format_parts(self, events: Events) -> bytes:
        """Return the events for parts that arrived together; never empty."""

    def format_silence(self) -> bytes:
        """Return a frame that shows during a silence that the stream is alive; never empty."""

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """Return the events for the last parts, followed by the events that end the stream."""

    def format_error(self, fault: ApiError) -> bytes:
        """Return the events that report an error in a running stream and end it."""


DRAFT_MODEL = "draft-model"
"""The draft model's name among the drafters."""

FEW = 0.1
"""Share of the tokens below which those that drafters got right are next to nothing."""


def count_usage(
    engine_requests: Sequence[GenerationRequest], ended: Mapping[int, Usage], n: int, num_reasoning: int = 0
) -> UsageBlock:
    """Count tokens over all choices; each prompt, and its cached part, counts once for its n choices.

    ended: usage of the sequences that have ended, by index in engine_requests.
    num_reasoning: reasoning tokens, over all choices.
    """
    num_prompt = sum(len(engine_request.prompt) for engine_request in engine_requests[::n])
    num_cached = sum(usage.num_cached_tokens for index, usage in ended.items() if index % n == 0)
    num_completion = sum(usage.num_completion_tokens for usage in ended.values())
    num_image = sum(
        image.length for engine_request in engine_requests[::n] for image in engine_request.images
    )
    of_images = {"image_tokens": num_image} if num_image else {}
    return UsageBlock(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached, **of_images),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=sum(usage.drafting.accepted_prediction for usage in ended.values()),
            rejected_prediction_tokens=sum(usage.drafting.rejected_prediction for usage in ended.values()),
            reasoning_tokens=num_reasoning,
            audio_tokens=0,
        ),
    )


def measure_timings(usages: Collection[Usage]) -> Timings:
    """Return the timings over all choices.

    usages: at least one; the first choice's comes first. All sequences were submitted at the same
        moment, when their times start. A phase lasts from when the first choice enters it until the last
        choice leaves it.

    The first step computes the prompt's last token and samples the first output token, or several if there is
    a draft. Both phases include this step; without it, both rates would be wrong.
    """
    first = next(iter(usages))
    num_computed = sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages)
    num_predicted = sum(usage.num_completion_tokens for usage in usages)
    prompt_s = max(usage.first_token_s for usage in usages) - min(usage.queue_s for usage in usages)
    predicted_s = max(usage.total_s for usage in usages) - min(usage.prefill_s for usage in usages)
    # What is not set is not sent.
    optional: dict[str, Any] = {
        "translation": count_translation(usages),
        "streaming": _describe_window(first.window_settings) if first.window_settings else None,
        "stopped": "loop" if any(usage.is_loop for usage in usages) else None,
    }
    return Timings(
        cache_n=sum(usage.num_cached_tokens for usage in usages),
        prompt_n=num_computed,
        prompt_ms=round(1000 * prompt_s, 3),
        prompt_per_second=_rate(num_computed, prompt_s),
        predicted_n=num_predicted,
        predicted_ms=round(1000 * predicted_s, 3),
        predicted_per_second=_rate(num_predicted, predicted_s),
        draft_n=sum(usage.drafting.num_drafted for usage in usages),
        draft_n_accepted=sum(usage.drafting.num_accepted for usage in usages),
        forwards=sum(usage.drafting.num_forwards for usage in usages),
        fed=sum(usage.drafting.num_fed for usage in usages),
        by_source={
            source: DraftCounts(draft_n=drafted, draft_n_accepted=accepted)
            for source, (drafted, accepted) in count_by_source(usages).items()
        },
        gate=GateBlock(
            score=first.drafting.gate_score,
            decision=first.drafting.gate_decision,
            reason=first.drafting.gate_reason,
            undrafted=explain_undrafted(usages),
        ),
        **{name: block for name, block in optional.items() if block},
    )


def _describe_window(settings: WindowSettings) -> WindowBlock:
    return WindowBlock(
        window_size=settings.window_size,
        entropy_threshold=settings.entropy_threshold,
        pos_penalty_factor=settings.pos_penalty_factor,
        anchor=settings.has_anchor,
        note="the answer may differ from that of plain decoding",
    )


def count_translation(usages: Collection[Usage]) -> TranslationBlock | None:
    """Count the draft model's translated drafts. Return None if the draft model read no prompt."""
    counts: Counter[str] = Counter()
    strategy = None
    for usage in usages:
        strategy = strategy or usage.drafting.strategy
        counts.update(usage.drafting.translation)
    if strategy is None:
        return None
    drafted, accepted = count_by_source(usages).get(DRAFT_MODEL, (0, 0))
    return TranslationBlock(strategy=strategy, drafted=drafted, accepted=accepted, **counts)


def count_by_source(usages: Collection[Usage]) -> dict[str, tuple[int, int]]:
    """Return (drafted, accepted) token counts by drafter name."""
    counts: dict[str, tuple[int, int]] = {}
    for usage in usages:
        for source, drafted, accepted in usage.drafting.by_source:
            previous = counts.get(source, (0, 0))
            counts[source] = previous[0] + drafted, previous[1] + accepted
    return counts


def explain_undrafted(usages: Collection[Usage]) -> str | None:
    """Say why nothing, or next to nothing, was drafted; None if enough was drafted, or if nothing may draft.

    The timings, the log, the list of requests and the page show this text. If all of several choices have a
    reason, it is the first choice's; else it is None.
    """
    reasons = [usage.drafting.why_undrafted for usage in usages]
    num_accepted = sum(usage.drafting.num_accepted for usage in usages)
    num_tokens = sum(usage.num_completion_tokens for usage in usages)
    return reasons[0] if reasons and all(reasons) and num_accepted < FEW * num_tokens else None


def fill_record(
    record: RequestRecord, engine_requests: Sequence[GenerationRequest], ended: Mapping[int, Usage], n: int
) -> None:
    """Write the counts and times into the request's log record."""
    counts = count_usage(engine_requests, ended, n)
    record.num_prompt_tokens = counts.prompt_tokens
    record.num_completion_tokens = counts.completion_tokens
    # Of a cancelled sequence that has yet to end nothing is known.
    is_known = len(ended) == len(engine_requests)
    record.num_cached_tokens = counts.prompt_tokens_details.cached_tokens if is_known else None
    record.num_forwards = sum(usage.drafting.num_forwards for usage in ended.values())
    record.drafts = count_by_source(ended.values())
    record.undrafted = explain_undrafted(ended.values())
    if any(request.window_settings for request in engine_requests):
        record.wedlm_decoding = "streaming"
    record.is_loop = any(usage.is_loop for usage in ended.values())
    if translation := count_translation(ended.values()):
        record.translation = translation.model_dump(exclude={"drafted", "accepted"})
    started = [usage for usage in ended.values() if usage.num_completion_tokens]
    if started:
        record.first_token_ms = 1000 * min(usage.first_token_s for usage in started)
        decode_s = max(usage.total_s for usage in started) - record.first_token_ms / 1000
        later = counts.completion_tokens - len(started)
        record.tokens_per_s = later / decode_s if later > 0 and decode_s > 0 else None


def _rate(count: int, duration_s: float) -> float:
    return round(count / duration_s, 3) if duration_s > 0 else 0.0
