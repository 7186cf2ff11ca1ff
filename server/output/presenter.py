"""The interface that formats answers for an API, and the reported counts and times."""

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reprise.engine.interface.events import TokenLogprob, Usage
from reprise.engine.interface.request import GenerationRequest
from reprise.server.errors import ApiError
from reprise.server.output.parts import ChoiceOutput, EndPart, Events, Part, merge_events
from reprise.server.tools.values import unescape

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that the response to a request, or each of its chunks, starts with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


KEEP_ALIVE = b": keep-alive\n"
"""A comment, which no client shows. After an empty line, several decoders would see an empty event."""


LINES = "application/x-ndjson"
"""The content type of a stream of JSON lines."""


class Presenter(ABC):
    """Formats the output of one request, as a whole response or as a stream of frames.

    usage: see count_usage(). timings: see measure_timings(). stream_type: the content type of a stream.
    """

    stream_type = "text/event-stream"

    @abstractmethod
    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """Return the JSON body of a response that is not streamed. outputs: one for each choice."""

    def format_opening(self, _usage: Json) -> bytes:
        """Return the frames that precede all parts. The usage has only the prompt's token count yet."""
        return b""

    def format_parts(self, events: Events) -> bytes:
        """Return the frames for parts that arrived together; never empty."""
        return self._frames(events) or self.format_silence()

    def format_silence(self) -> bytes:
        """Return a keep-alive frame for a silent stream; never empty."""
        return KEEP_ALIVE

    @abstractmethod
    def format_end(self, events: Events, usage: Json, timings: Json) -> bytes:
        """Return the frames for the last parts, followed by those that end the stream."""

    def format_error(self, _told: ApiError) -> bytes:
        """Return the frames that end a running stream with an error; b"" if error_frame() makes them."""
        return b""

    @abstractmethod
    def _frames(self, events: Events) -> bytes: ...


class OneChoicePresenter(Presenter):
    """Presenter of an API whose requests have one choice."""

    def format_end(self, events: Events, usage: Json, timings: Json) -> bytes:
        """See Presenter. An EndPart is among the last parts."""
        end = next(part for _, part in events if isinstance(part, EndPart))
        return self._frames(events) + self._ending(end, usage, timings)

    def _frames(self, events: Events) -> bytes:
        return b"".join(self._part(part) for _, part in merge_events(events))

    @abstractmethod
    def _part(self, part: Part) -> bytes:
        """Return the frames for a part, if it has any."""

    @abstractmethod
    def _ending(self, end: EndPart, usage: Json, timings: Json) -> bytes:
        """Return the frames that end the stream after all parts."""


_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]+')


class InputDecoder:
    """Decodes a free-form tool's input from the JSON of a call's arguments, which arrives in pieces."""

    def __init__(self) -> None:
        self._pending = ""
        self._is_inside = False

    def feed(self, arguments: str) -> str:
        """Add text of the arguments' JSON; return the part of the decoded input that is certain now."""
        self._pending += arguments
        if not self._is_inside:
            head = _HEAD.match(self._pending)
            if head is None:
                return ""
            self._is_inside = True
            self._pending = self._pending[head.end() :]
        decoded = []
        while self._pending:
            plain = _PLAIN.match(self._pending)
            text, length = (plain[0], plain.end()) if plain else unescape(self._pending)
            if not length:
                break
            decoded.append(text)
            self._pending = self._pending[length:]
        return "".join(decoded)


FLOOR = -9999.0
"""Replaces the log probability of a token that cannot occur, as in OpenAI's API: JSON has no infinity."""


def finite(logprob: float | None) -> float:
    """Return a log probability as a finite number, for JSON; see FLOOR."""
    return logprob if logprob is not None and math.isfinite(logprob) and logprob > FLOOR else FLOOR


def chat_logprobs(entries: Sequence[TokenLogprob]) -> list[Json]:
    """Format log probabilities for chats: each token's, and those of the most likely tokens at its position.

    A token that holds only part of a character is shown as U+FFFD, along with its bytes.
    """
    return [
        _likely(entry.token_bytes, entry.logprob)
        | {"top_logprobs": [_likely(token_bytes, logprob) for _, token_bytes, logprob in entry.top]}
        for entry in entries
    ]


def _likely(token_bytes: bytes, logprob: float | None) -> Json:
    token = token_bytes.decode(errors="replace")
    return {"token": token, "bytes": list(token_bytes), "logprob": finite(logprob)}


DRAFT_MODEL = "draft-model"
"""The draft model's name among the drafters."""

FEW = 0.1
"""Share of the tokens below which those that drafters got right are next to nothing."""


def count_usage(
    engine_requests: Sequence[GenerationRequest], ended: Mapping[int, Usage], n: int, num_reasoning: int = 0
) -> Json:
    """Count tokens over all choices; each prompt, and its cached part, counts once for its n choices.

    ended: usage of the sequences that have ended, by index in engine_requests.
    num_reasoning: reasoning tokens, over all choices.
    """
    num_prompt = sum(len(engine_request.prompt) for engine_request in engine_requests[::n])
    num_completion = sum(usage.num_completion_tokens for usage in ended.values())
    num_image = sum(
        image.length for engine_request in engine_requests[::n] for image in engine_request.images
    )
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.num_cached_tokens for at, usage in ended.items() if at % n == 0),
            # Not in OpenAI's API.
            **({"image_tokens": num_image} if num_image else {}),
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(one.drafting.accepted_prediction for one in ended.values()),
            "rejected_prediction_tokens": sum(one.drafting.rejected_prediction for one in ended.values()),
            "reasoning_tokens": num_reasoning,
            "audio_tokens": 0,
        },
    }


def measure_timings(usages: Collection[Usage]) -> Json:
    """Return the times and counts over all choices. Up to draft_n_accepted they have llama-server's names.

    usages: at least one; the first choice's comes first. All times start at the common moment of submission.
        A phase lasts from the first choice's entry until the last choice's exit.

    The first step computes the prompt's last token and samples the first output token, or several if there is
    a draft. Both phases include this step; without it, both rates would be wrong.

    cache_n, prompt_n: prompt tokens from the prefix cache, and computed. read_ahead_n: those from the cache
        that were read ahead. fed: tokens fed in the forwards.
    gate: the decision for the first choice. translation: only if a draft model read the prompt.
    streaming: only if the answer was decoded in windows. stopped: only if the loop guard ended a choice.
    """
    first = next(iter(usages))
    num_computed = sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages)
    num_predicted = sum(usage.num_completion_tokens for usage in usages)
    prompt_s = max(usage.first_token_s for usage in usages) - min(usage.queue_s for usage in usages)
    predicted_s = max(usage.total_s for usage in usages) - min(usage.prefill_s for usage in usages)
    timings: Json = {
        "cache_n": sum(usage.num_cached_tokens for usage in usages),
        "read_ahead_n": sum(usage.num_read_ahead_tokens for usage in usages),
        "prompt_n": num_computed,
        "prompt_ms": round(1000 * prompt_s, 3),
        "prompt_per_second": _rate(num_computed, prompt_s),
        "predicted_n": num_predicted,
        "predicted_ms": round(1000 * predicted_s, 3),
        "predicted_per_second": _rate(num_predicted, predicted_s),
        "draft_n": sum(usage.drafting.num_drafted for usage in usages),
        "draft_n_accepted": sum(usage.drafting.num_accepted for usage in usages),
        "forwards": sum(usage.drafting.num_forwards for usage in usages),
        "fed": sum(usage.drafting.num_fed for usage in usages),
        "by_source": {
            source: {"draft_n": drafted, "draft_n_accepted": accepted}
            for source, (drafted, accepted) in count_by_source(usages).items()
        },
        "gate": {
            "score": first.drafting.gate_score,
            "decision": first.drafting.gate_decision,
            "reason": first.drafting.gate_reason,
            "undrafted": explain_undrafted(usages),
        },
    }
    if translation := count_translation(usages):
        timings["translation"] = translation
    if window := first.window_settings:
        timings["streaming"] = {
            "window_size": window.window_size,
            "entropy_threshold": window.entropy_threshold,
            "pos_penalty_factor": window.pos_penalty_factor,
            "anchor": window.has_anchor,
            "note": "the answer may differ from that of plain decoding",
        }
    if any(usage.is_loop for usage in usages):
        timings["stopped"] = "loop"
    return timings


def count_translation(usages: Collection[Usage]) -> Json | None:
    """Count the draft model's translated drafts. Return None if the draft model read no prompt."""
    counts: Counter[str] = Counter()
    for usage in usages:
        counts.update(usage.drafting.translation)
    strategy = next((usage.drafting.strategy for usage in usages if usage.drafting.strategy), None)
    if strategy is None:
        return None
    drafted, accepted = count_by_source(usages).get(DRAFT_MODEL, (0, 0))
    return {"strategy": strategy, "drafted": drafted, "accepted": accepted, **counts}


def count_by_source(usages: Collection[Usage]) -> dict[str, tuple[int, int]]:
    """Return (drafted, accepted) token counts by drafter name."""
    counts: dict[str, tuple[int, int]] = {}
    for usage in usages:
        for source, drafted, accepted in usage.drafting.by_source:
            previous = counts.get(source, (0, 0))
            counts[source] = previous[0] + drafted, previous[1] + accepted
    return counts


def explain_undrafted(usages: Collection[Usage]) -> str | None:
    """Return why (almost) nothing was drafted; None if enough was drafted, or if nothing may draft.

    The timings, the log, the list of requests and the page show this text. With several choices it is the
    first choice's reason if all have one, else None.
    """
    reasons = [usage.drafting.why_undrafted for usage in usages]
    num_accepted = sum(usage.drafting.num_accepted for usage in usages)
    num_tokens = sum(usage.num_completion_tokens for usage in usages)
    return reasons[0] if reasons and all(reasons) and num_accepted < FEW * num_tokens else None


def _rate(count: int, duration_s: float) -> float:
    return round(count / duration_s, 3) if duration_s > 0 else 0.0
