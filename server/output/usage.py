"""What a request's sequences took and what drafting did for them: for the response and for the log."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from engine.request import GenerationRequest, Usage
from server.logs import RequestRecord
from server.output.openai_objects import (
    CompletionTokensDetails,
    DraftCounts,
    GateBlock,
    PromptTokensDetails,
    Timings,
    TranslationBlock,
    UsageBlock,
)

DRAFT_MODEL = "draft-model"
"""What its drafts are called among those of all drafters."""


def count_usage(
    engine_requests: Sequence[GenerationRequest], ended: Mapping[int, Usage], n: int, num_reasoning: int = 0
) -> UsageBlock:
    """Count tokens over all choices; each prompt, and what was cached of it, once for its n choices.

    ended: usage of the sequences that have ended, by the index of their order.
    num_reasoning: tokens of the answers that were thinking.
    """
    num_prompt = sum(len(order.prompt) for order in engine_requests[::n])
    num_cached = sum(usage.num_cached_tokens for index, usage in ended.items() if index % n == 0)
    num_completion = sum(usage.num_completion_tokens for usage in ended.values())
    return UsageBlock(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=sum(usage.drafting.accepted_prediction for usage in ended.values()),
            rejected_prediction_tokens=sum(usage.drafting.rejected_prediction for usage in ended.values()),
            reasoning_tokens=num_reasoning,
            audio_tokens=0,
        ),
    )


def time_sequences(usages: Collection[Usage]) -> Timings:
    """The timings over all choices.

    usages: at least one, the first choice's first. All were submitted at one moment, so their times have
        one origin, and a phase lasts from the first choice's entering it to the last one's leaving it.

    The first step computes the prompt's last token and draws the first of the answer, or several with a
    draft. Both phases include it: without it the rate of neither would be true.
    """
    first = next(iter(usages))
    num_computed = sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages)
    num_predicted = sum(usage.num_completion_tokens for usage in usages)
    prompt_s = max(usage.first_token_s for usage in usages) - min(usage.queue_s for usage in usages)
    predicted_s = max(usage.total_s for usage in usages) - min(usage.prefill_s for usage in usages)
    translation = count_translation(usages)
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
        by_source={
            source: DraftCounts(draft_n=drafted, draft_n_accepted=accepted)
            for source, (drafted, accepted) in count_by_source(usages).items()
        },
        gate=GateBlock(
            score=first.drafting.gate_score,
            decision=first.drafting.gate_decision,
            reason=first.drafting.gate_reason,
        ),
        **({"translation": translation} if translation else {}),
    )


def count_translation(usages: Collection[Usage]) -> TranslationBlock | None:
    """What became of the draft model's drafts, None where it did not read a prompt."""
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
    """(drafted, accepted) tokens by the name of the drafter."""
    counts: dict[str, tuple[int, int]] = {}
    for usage in usages:
        for source, drafted, accepted in usage.drafting.by_source:
            before = counts.get(source, (0, 0))
            counts[source] = before[0] + drafted, before[1] + accepted
    return counts


def note_in_record(
    record: RequestRecord, engine_requests: Sequence[GenerationRequest], ended: Mapping[int, Usage], n: int
) -> None:
    """Write the counts and times into the record for the log."""
    counts = count_usage(engine_requests, ended, n)
    record.num_prompt_tokens = counts.prompt_tokens
    record.num_completion_tokens = counts.completion_tokens
    record.num_cached_tokens = counts.prompt_tokens_details.cached_tokens
    record.num_forwards = sum(usage.drafting.num_forwards for usage in ended.values())
    record.drafts = count_by_source(ended.values())
    if translation := count_translation(ended.values()):
        record.translation = translation.model_dump(exclude={"drafted", "accepted"})
    begun = [usage for usage in ended.values() if usage.num_completion_tokens]
    if begun:
        record.first_token_ms = 1000 * min(usage.first_token_s for usage in begun)
        decode_s = max(usage.total_s for usage in begun) - record.first_token_ms / 1000
        later = counts.completion_tokens - len(begun)
        record.tokens_per_s = later / decode_s if later > 0 and decode_s > 0 else None


def _rate(count: int, spent_s: float) -> float:
    return round(count / spent_s, 3) if spent_s > 0 else 0.0
