"""Format the text that fills a hole as llama-server's /infill does."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from reprise.server.errors import ApiError
from reprise.server.output.openai_objects import Timings, UsageBlock
from reprise.server.output.parsing.parts import ChoiceOutput, EndPart, TextPart, merge_adjacent
from reprise.server.output.presenter import KEEP_ALIVE, Events


class InfillPresenter:
    """Presenter for /infill.

    model: the model's name. is_silent: whether the client wants no text, only the prompt to be cached.
    """

    def __init__(self, model: str, is_silent: bool = False) -> None:
        self._model = model
        self._is_silent = is_silent

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter. The first choice is the answer."""
        first = outputs[0]
        return to_json(self._end(first.text, EndPart(first.finish_reason, first.stop), usage, timings))

    def format_opening(self, _usage: UsageBlock) -> bytes:
        """See Presenter."""
        return b""

    def format_parts(self, events: Events) -> bytes:
        """See Presenter."""
        texts = merge_adjacent(part for index, part in events if index == 0)
        shown = [part.text for part in texts if isinstance(part, TextPart) and not self._is_silent]
        frames = [_frame({"index": 0, "content": text, "stop": False}) for text in shown if text]
        return b"".join(frames) or KEEP_ALIVE

    def format_silence(self) -> bytes:
        """See Presenter."""
        return KEEP_ALIVE

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        end = next((part for _, part in events if isinstance(part, EndPart)), EndPart("stop"))
        return self.format_parts(events) + _frame(self._end("", end, usage, timings))

    def format_error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        return _frame(fault.body())

    def _end(self, text: str, end: EndPart, usage: UsageBlock, timings: Timings) -> dict[str, Any]:
        is_cut = end.finish_reason == "length"
        return {
            "index": 0,
            "content": "" if self._is_silent else text,
            "model": self._model,
            "stop": True,
            "stop_type": "limit" if is_cut else "word" if end.stop else "eos",
            "stopping_word": end.stop or "",
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.prompt_tokens_details.cached_tokens,
            "truncated": False,
            "timings": timings.model_dump(exclude_unset=True),
        }


def _frame(event: dict[str, Any]) -> bytes:
    return b"data: " + to_json(event) + b"\n\n"
