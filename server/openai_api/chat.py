"""POST /v1/chat/completions and /v1/completions: the routes, and how answers are formatted."""

import secrets
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.generation.answer import answer, response_head
from reprise.server.generation.prepare import prepare_chat, prepare_completion
from reprise.server.generation.service import lease_for
from reprise.server.http.body import read_body
from reprise.server.http.error_responses import server_sent_event
from reprise.server.http.openapi import body_schema
from reprise.server.output.parser_base import TokenPositions
from reprise.server.output.parts import (
    CallArgumentsPart,
    ChoiceOutput,
    ChoiceTokens,
    EndPart,
    Events,
    Part,
    PromptPart,
    ReasoningPart,
    ReportPart,
    StreamedText,
    TextPart,
    ToolCallPart,
    merge_events,
    merge_runs,
)
from reprise.server.output.presenter import (
    InputDecoder,
    Json,
    Presenter,
    ResponseHead,
    chat_logprobs,
    finite,
)
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.generation_fields import GenerationFields


class PromptPositions:
    """Finds the positions of a prompt's tokens in its text, which may lack special tokens."""

    def __init__(self, text: str) -> None:
        self._encoded = text.encode()
        self._at = 0
        self._num_characters = 0

    def add(self, token_bytes: bytes) -> int:
        """Move past the next token. Returns the index of the character in which the token begins."""
        is_within = self._at < len(self._encoded) and _is_continuation(self._encoded[self._at])
        position = max(0, self._num_characters - is_within)
        for found in (token_bytes, token_bytes.removeprefix(b" ")):
            if self._encoded.startswith(found, self._at):
                self._num_characters += sum(not _is_continuation(byte) for byte in found)
                self._at += len(found)
                break
        return position


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


class CompletionLogprobs:
    """Log probabilities of one choice of /v1/completions, formatted as its tokens arrive.

    text_offset counts characters from the start of the choice's text, over all chunks.
    """

    def __init__(self) -> None:
        self._positions = TokenPositions()
        self._prompt = PromptPositions("")
        self._has_started = False

    def add(self, *parts: TextPart) -> Json:
        """Format the tokens of the next parts, as four lists of the same length.

        The first token of an echoed prompt has null: no probability is known for it.
        """
        offsets = [offset for part in parts for offset in self._offsets(part)]
        entries = [entry for part in parts for entry in part.logprobs]
        known = [None if entry.logprob is None else entry for entry in entries]
        return {
            "tokens": [_token_string(entry.token_bytes) for entry in entries],
            "token_logprobs": [entry and finite(entry.logprob) for entry in known],
            "top_logprobs": [entry and _top_logprobs(entry) for entry in known],
            "text_offset": offsets,
        }

    def _offsets(self, part: TextPart) -> list[int]:
        if not isinstance(part, PromptPart):
            return [self._advance(entry.token_bytes, part.text) for entry in part.logprobs]
        if not self._has_started:
            self._prompt, self._positions = PromptPositions(part.text), TokenPositions(len(part.text))
            self._has_started = True
        return [self._prompt.add(entry.token_bytes) for entry in part.logprobs]

    def _advance(self, token_bytes: bytes, text: str) -> int:
        """Return the next token's offset and move past the token."""
        if not self._has_started and text and not text.startswith(" "):
            # Some tokenizers start every word with a space, which is dropped at the start of a text.
            token_bytes = token_bytes.removeprefix(b" ")
        self._has_started = True
        return self._positions.add(token_bytes)


def _top_logprobs(entry: TokenLogprob) -> dict[str, float]:
    """Return the most likely tokens, and the sampled token if it is not among them."""
    found: dict[str, float] = {}
    for _, token_bytes, logprob in entry.top:
        found.setdefault(_token_string(token_bytes), finite(logprob))
    found.setdefault(_token_string(entry.token_bytes), finite(entry.logprob))
    return found


def _token_string(token_bytes: bytes) -> str:
    r"""Return a token as text, or in OpenAI's notation bytes:\xff if it is not valid UTF-8."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


DONE = server_sent_event(b"[DONE]")


class OpenAIPresenter(Presenter):
    """The common part of the presenters of /v1/chat/completions and /v1/completions.

    Fields that OpenAI always sends are always present, perhaps null; others only with a value. With
    wants_usage_chunk every chunk has a usage field, null except in the last.
    """

    response_object: str
    chunk_object: str
    has_prompt_in_choice: bool
    """Whether a prompt's token ids stand in the choice, as vLLM has it, or beside the choices."""

    def __init__(self, head: ResponseHead, body: GenerationFields, id_prefix: str) -> None:
        self._id, self._wants_usage = f"{id_prefix}-{head.id}", body.wants_usage_chunk
        self._head = {name: getattr(head, name) for name in ("created", "model", "system_fingerprint")}
        self._no_usage = {"usage": None} if body.wants_usage_chunk else {}
        self._around_text: dict[tuple[int, type[StreamedText]], tuple[bytes, bytes]] = {}

    @abstractmethod
    def _choice(self, index: int, output: ChoiceOutput) -> Json:
        """Return a choice of a response that is not streamed, without its report."""

    @abstractmethod
    def _chunk_choice(self, index: int, part: Part) -> Json:
        """Return the choice in the chunk for a part."""

    def _report(self, choice: Json, trace: Sequence[tuple[str, str]], tokens: ChoiceTokens | None) -> Json:
        """Add the sources of a choice's text, such as drafters, and its token ids. See ReportPart.

        Returns the fields that stand beside the choices.
        """
        if trace:
            choice["draft_trace"] = [{"text": text, "source": source} for text, source in trace]
        if tokens is None:
            return {}
        choice["token_ids"] = tokens.answer
        if not self.has_prompt_in_choice:
            return {"prompt_token_ids": tokens.prompt}
        choice["prompt_token_ids"] = tokens.prompt
        return {}

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter."""
        choices, beside = [], []
        for index, output in enumerate(outputs):
            choice = self._choice(index, output) | output.end.checked
            beside.append(self._report(choice, output.trace, output.tokens))
            choices.append(choice)
        return self._envelope(self.response_object, choices, usage=usage, timings=timings, **beside[0])

    def format_end(self, events: Events, usage: Json, timings: Json) -> bytes:
        """See Presenter. The last chunk carries the timings."""
        *earlier, (index, end) = events
        frames = self._frames(earlier)
        if not self._wants_usage:
            return frames + self._chunk_of(index, end, ReportPart({"timings": timings})) + DONE
        closing = self._envelope(self.chunk_object, [], usage=usage, timings=timings)
        return frames + self._chunk_of(index, end) + server_sent_event(closing) + DONE

    def _frames(self, events: Events) -> bytes:
        """Return the chunks of parts. A choice's report is in each of its chunks."""
        reports: dict[int, ReportPart] = {}
        for index, part in events:
            if isinstance(part, ReportPart):
                before = reports.get(index, ReportPart())
                fields, tokens = {**before.fields, **part.fields}, part.tokens or before.tokens
                reports[index] = ReportPart(fields, before.trace + part.trace, tokens)
        merged = merge_events([event for event in events if not isinstance(event[1], ReportPart)])
        silent = reports.keys() - {index for index, _ in merged}
        merged += [(index, reports[index]) for index in sorted(silent)]
        frames = []
        for index, part in merged:
            report = reports.get(index)
            frames.append(self._chunk_of(index, part, report))
            if report and (report.trace or report.tokens):
                # Only once, in the first of the choice's chunks.
                reports[index] = ReportPart(report.fields)
        return b"".join(frames)

    def _chunk_of(self, index: int, part: Part, report: ReportPart | None = None) -> bytes:
        """Return the chunk of a part. report: further fields of the chunk."""
        if report is None and (
            isinstance(part, ReasoningPart) or (isinstance(part, TextPart) and not part.logprobs)
        ):
            return self._text_chunk(index, part)
        choice = self._chunk_choice(index, part)
        if report is None:
            return self._chunk(choice)
        beside = self._report(choice, merge_runs(report.trace), report.tokens)
        return self._chunk(choice, **report.fields, **beside)

    def _text_chunk(self, index: int, part: StreamedText) -> bytes:
        """Return the chunk for text or reasoning.

        Called for every token, so only the text is serialized; the JSON around it is made once per choice.
        """
        key = index, type(part)
        if key not in self._around_text:
            placeholder = secrets.token_hex(16)
            chunk = self._chunk(self._chunk_choice(index, type(part)(placeholder)))
            before, _, after = chunk.partition(to_json(placeholder))
            self._around_text[key] = before, after
        before, after = self._around_text[key]
        return before + to_json(part.text) + after

    def _chunk(self, choice: Json, **more: object) -> bytes:
        return server_sent_event(self._envelope(self.chunk_object, [choice], **self._no_usage, **more))

    def _envelope(self, kind: str, choices: Sequence[Json], **more: object) -> bytes:
        """Return a response or a chunk as JSON. more: further fields."""
        return to_json({"id": self._id, "object": kind, **self._head, "choices": choices, **more})


class ChatPresenter(OpenAIPresenter):
    """Presenter for /v1/chat/completions."""

    response_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    has_prompt_in_choice = False

    def __init__(self, head: ResponseHead, body: ChatRequest) -> None:
        super().__init__(head, body, "chatcmpl")
        if body.service_tier:
            # There is only one tier, whichever was requested.
            self._head["service_tier"] = "default"
        self._num_choices, self._wants_logprobs = body.n, body.logprobs
        # OpenAI's streams begin with null content if there are tools, else with an empty string.
        self._opens_with = None if body.shown_tools else ""
        self._custom_tools = {tool.name for tool in body.shown_tools if tool.is_custom}
        self._decoders: dict[tuple[int, int], InputDecoder] = {}

    def format_opening(self, _usage: Json) -> bytes:
        """See Presenter. Each choice starts with a chunk that has the role."""
        delta = {"role": "assistant", "content": self._opens_with, "refusal": None}
        return b"".join(self._chunk(_delta_choice(index, delta)) for index in range(self._num_choices))

    def _choice(self, index: int, output: ChoiceOutput) -> Json:
        content = output.text if output.text or not output.tool_calls else None
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if output.reasoning:
            message["reasoning_content"] = output.reasoning
        if output.tool_calls:
            message["tool_calls"] = [self._call(index, call) for call in output.tool_calls]
        return {
            "index": index,
            "message": message,
            "logprobs": _content_logprobs(output.logprobs) if self._wants_logprobs else None,
            "finish_reason": output.end.finish_reason,
        }

    def _chunk_choice(self, index: int, part: Part) -> Json:
        match part:
            case TextPart():
                logprobs = _content_logprobs(part.logprobs) if part.logprobs else None
                return _delta_choice(index, {"content": part.text}, logprobs=logprobs)
            case ReasoningPart():
                return _delta_choice(index, {"reasoning_content": part.text})
            case ToolCallPart():
                call = {"index": part.index, **self._call(index, part)}
                return _delta_choice(index, {"tool_calls": [call]})
            case CallArgumentsPart():
                decoder = self._decoders.get((index, part.index))
                call = {"index": part.index, "function": {"arguments": part.text}}
                if decoder is not None:
                    call = {"index": part.index, "custom": {"input": decoder.feed(part.text)}}
                return _delta_choice(index, {"tool_calls": [call]})
            case EndPart():
                return _delta_choice(index, {}, finish_reason=part.finish_reason, **part.checked)
            case ReportPart():
                return _delta_choice(index, {})

    def _call(self, index: int, call: ToolCallPart) -> Json:
        if call.name not in self._custom_tools:
            function = {"name": call.name, "arguments": call.arguments}
            return {"id": call.id, "type": "function", "function": function}
        decoder = self._decoders[index, call.index] = InputDecoder()
        custom = {"name": call.name, "input": decoder.feed(call.arguments)}
        return {"id": call.id, "type": "custom", "custom": custom}


def _delta_choice(index: int, delta: Json, **more: object) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}


def _content_logprobs(entries: Sequence[TokenLogprob]) -> Json:
    return {"content": chat_logprobs(entries), "refusal": None}


class CompletionPresenter(OpenAIPresenter):
    """Presenter for /v1/completions, where chunks have the shape of responses."""

    response_object = chunk_object = "text_completion"
    has_prompt_in_choice = True

    def __init__(self, head: ResponseHead, body: CompletionRequest) -> None:
        super().__init__(head, body, "cmpl")
        self._wants_logprobs = body.num_top_logprobs is not None
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)

    def _choice(self, index: int, output: ChoiceOutput) -> Json:
        parts = [TextPart(output.text, tuple(output.logprobs))]
        if output.prompt is not None:
            parts.insert(0, output.prompt)
        return {
            "text": "".join(part.text for part in parts),
            "index": index,
            "logprobs": self._logprobs[index].add(*parts) if self._wants_logprobs else None,
            "finish_reason": output.end.finish_reason,
        }

    def _chunk_choice(self, index: int, part: Part) -> Json:
        # Completions are not parsed for anything but text and the end.
        text = part if isinstance(part, TextPart) else TextPart("")
        return {
            "text": text.text,
            "index": index,
            "logprobs": self._logprobs[index].add(text) if text.logprobs and self._wants_logprobs else None,
            "finish_reason": part.finish_reason if isinstance(part, EndPart) else None,
        }


router = APIRouter()
BODIES = (ChatRequest, CompletionRequest)


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Generate the next message of a conversation."""
    body = await read_body(request, ChatRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    prepare = partial(prepare_chat, request, leased, body)
    return await answer(request, leased, prepare, ChatPresenter(head, body))


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    body = await read_body(request, CompletionRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    prepare = partial(prepare_completion, request, leased, body, head.model)
    return await answer(request, leased, prepare, CompletionPresenter(head, body))
