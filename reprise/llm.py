"""Use a model from Python, without a server: `LLM("smollm2").generate("Once upon a time")`.

The server's own routes and engine run in this process, without a socket. So an answer has the same tokens as
over HTTP, every field of docs/api.md works, and an error has the server's text.
"""

import base64
import io
import json
import logging
import os
import sys
import threading
import weakref
from array import array
from asyncio import wrap_future
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

from pydantic import BaseModel

from reprise.config.setting import SettingsError
from reprise.config.settings import SETTINGS, Settings
from reprise.config.unknown import explain_unknown
from reprise.engine.interface.request import DraftType
from reprise.server.errors import ApiError, UnavailableError

if TYPE_CHECKING:
    # Importing them takes seconds.
    from reprise.engine.engine import Engine
    from reprise.engine.speculative.proposers import MakeSources
    from reprise.in_process import Call, InProcess

Message = Mapping[str, Any]
Prompt = str | Sequence[int]
"""A text, or its token ids."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How an answer's tokens are chosen, and where it ends.

    None means the model's recommended value, or else the API's default.

    max_tokens: the answer's maximum; None for what is left of the context.
    temperature: 0 chooses the likeliest token. top_p, top_k, min_p: which tokens are considered.
    seed: the same seed and prompt give the same tokens; None for a random one.
    stop: strings that end the answer, and are not part of it. stop_token_ids: tokens that do.
    min_tokens: tokens before which nothing ends the answer.
    ignore_eos: whether the model's own end does not end the answer.
    logit_bias: numbers added to the logits of token ids.
    logprobs: number of alternatives to report beside each token's log probability; 0 for that alone.
    json_schema: the answer is JSON of this schema; a class of pydantic stands for its schema.
    regex, grammar: the answer matches a regular expression, or a grammar in Lark's syntax.
    draft: the source of drafts, such as "suffix"; False for none. It changes the speed, never the answer.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    json_schema: Mapping[str, Any] | type[BaseModel] | None = None
    regex: str | None = None
    grammar: str | None = None
    draft: bool | DraftType | None = None

    def _fields(self, *, is_chat: bool) -> dict[str, Any]:
        """Return the fields of a request's body."""
        body = {name: value for name, value in vars(self).items() if value is not None}
        if is_chat and (num := body.pop("logprobs", None)) is not None:
            body |= {"logprobs": True, "top_logprobs": num}
        schema: Any = body.pop("json_schema", None)
        if schema is not None:
            is_class = isinstance(schema, type) and issubclass(schema, BaseModel)
            body["guided_json"] = schema.model_json_schema() if is_class else schema
        for name in ("regex", "grammar"):
            if name in body:
                body[f"guided_{name}"] = body.pop(name)
        if "logit_bias" in body:
            body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
        draft = body.pop("draft", True)
        if draft is not True:
            body["draft"] = {"type": draft or "none"}
        return body


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called.

    arguments: parsed; as text if the tool is free-form, or if the answer ended within them.
    """

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token of an answer, and its log probability. top: those of the likeliest tokens at its position."""

    token: str
    logprob: float | None
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an answer. reasoning: of the model's reasoning, which is no part of the text."""

    text: str = ""
    reasoning: str = ""


@dataclass(slots=True)
class Completion:
    """An answer.

    text: without reasoning and tool calls. reasoning: empty if the model did not think.
    token_ids: of the whole answer, with the token that ended it. prompt_token_ids: of the prompt.
    finish_reason: "stop", "length" for max_tokens, or "tool_calls".
    message: the answer as a message, to append to the conversation; empty unless it answers one.
    logprobs: of the text's tokens; empty unless SamplingParams asks for them.
    usage, timings: counts and times, as responses have them; see docs/api.md.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    message: dict[str, Any] = field(default_factory=dict)
    logprobs: list[Logprob] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)


class _Reader:
    """Reads a response, whole or in chunks, into a Completion.

    deltas: what has come and was not taken yet.
    """

    def __init__(self, *, is_chat: bool) -> None:
        self.completion = Completion()
        self.deltas: deque[Delta] = deque()
        self._is_chat = is_chat
        self._calls: list[dict[str, Any]] = []

    def read(self, found: dict[str, Any]) -> None:
        """Read a response or a chunk. Raises ApiError for a chunk that is an error."""
        if "error" in found:
            raise ApiError.of(found["error"])
        completion = self.completion
        completion.usage = found.get("usage") or completion.usage
        completion.timings = found.get("timings") or completion.timings
        completion.prompt_token_ids += found.get("prompt_token_ids", ())
        for choice in found["choices"]:
            self._read_choice(choice)

    def finish(self) -> Completion:
        """Return the Completion, once all is read. Raises UnavailableError if the end is missing."""
        completion = self.completion
        if completion.finish_reason is None:
            raise UnavailableError("The answer ended before it was complete.", code="cancelled")
        for call in self._calls:
            tool = call[call["type"]]
            arguments = _parsed(tool["arguments"]) if "arguments" in tool else tool["input"]
            completion.tool_calls.append(ToolCall(call["id"], tool["name"], arguments))
        if self._is_chat:
            completion.message = {"role": "assistant", "content": completion.text or None}
            if completion.reasoning:
                completion.message["reasoning_content"] = completion.reasoning
            if self._calls:
                completion.message["tool_calls"] = self._calls
        return completion

    def _read_choice(self, choice: dict[str, Any]) -> None:
        completion = self.completion
        said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        text, reasoning = said.get("content") or "", said.get("reasoning_content") or ""
        if text or reasoning:
            self.deltas.append(Delta(text, reasoning))
        completion.text += text
        completion.reasoning += reasoning
        for call in said.get("tool_calls") or ():
            self._read_call(call)
        completion.finish_reason = choice["finish_reason"] or completion.finish_reason
        completion.token_ids += choice.get("token_ids", ())
        completion.prompt_token_ids += choice.get("prompt_token_ids", ())
        if logprobs := choice.get("logprobs"):
            completion.logprobs += _read_logprobs(logprobs)

    def _read_call(self, call: dict[str, Any]) -> None:
        kind = "function" if "function" in call else "custom"
        if "id" in call:
            self._calls.append({"id": call["id"], "type": kind, kind: dict(call[kind])})
            return
        begun = self._calls[call["index"]][kind]
        for name, more in call[kind].items():
            begun[name] += more


class Stream:
    """An answer under way. Iterate over it, with `for` or `async for`, or await it for the whole Completion.

    Leaving a `with` or `async with` block, close(), and dropping it cancel what was not computed yet.

    llm: stays open until its answer ends.
    """

    def __init__(self, call: "Call", llm: "LLM", *, is_chat: bool) -> None:
        self._call = call
        self._llm = llm
        weakref.finalize(self, call.cancel)
        self._reader = _Reader(is_chat=is_chat)
        self._unread = b""
        self._has_ended = False

    @property
    def completion(self) -> Completion:
        """What has come so far; whole once the iteration has ended."""
        return self._reader.completion

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        while not self._reader.deltas:
            if self._has_ended:
                raise StopIteration
            with self._reading():
                self._take(self._call.parts.get().result())
        return self._reader.deltas.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._reader.deltas:
            if self._has_ended:
                raise StopAsyncIteration
            with self._reading():
                self._take(await wrap_future(self._call.parts.get()))
        return self._reader.deltas.popleft()

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._read_async().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the rest of the answer; of no effect at its end. Any thread may call it."""
        self._call.cancel()

    def read(self) -> Completion:
        """Wait for the rest of the answer and return all of it. Raises ApiError."""
        for _ in self:
            pass
        return self.completion

    async def _read_async(self) -> Completion:
        async for _ in self:
            pass
        return self.completion

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """End the stream if reading raises anything, Ctrl-C too: nobody will read the rest."""
        try:
            yield
        except BaseException:
            self._has_ended = True
            self.close()
            raise

    def _take(self, part: bytes | None) -> None:
        """Read the next server-sent events; None is the end."""
        if part is None:
            self._has_ended = True
            self._reader.finish()
            return
        # Each event's data is one line; the others are comments, and the last event, [DONE].
        *lines, self._unread = (self._unread + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._reader.read(json.loads(line[6:]))


class LLM:
    """A loaded model. Any thread may use it, several at a time. Close it, or use it as a context.

    At most one is open in a process, because everything that computes shares one thread; settings such as
    models_dir and embedding_model let it hold several models.

    model: as `reprise serve` takes it: a folder, a name on the hub, smollm2, or a GGUF file; None for the
        bundled demo model.
    progress: whether to show a bar while it loads; None for on a terminal and in a notebook.
    settings: of docs/settings.md, such as max_context_tokens=8192 or draft_model="...". Neither files nor
        environment variables are read.
    Raises RepriseError: SettingsError, ConvertError or ModelError.
    """

    _one: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, model: str | Path | None = None, *, progress: bool | None = None, **settings: Any
    ) -> None:
        for name in settings:
            if name not in SETTINGS:
                raise SettingsError(explain_unknown(f"setting {name}", name, SETTINGS))
        chosen = Settings(model=None if model is None else str(model), **settings)
        for thread in threading.enumerate():
            if thread.name == _CLOSES:
                thread.join()
        if not self._one.acquire(blocking=False):
            raise SettingsError(
                "an LLM is open in this process already, and one thread computes for all models: close it "
                "first, or let it hold both (models_dir, embedding_model, rerank_model)"
            )
        try:
            with _loading_bar(progress) as show:
                self._engine, self._server = _start(chosen, show)
        except BaseException:
            self._one.release()
            raise
        # Where it is dropped without close(), and before the interpreter ends.
        self._dropped = weakref.finalize(self, _drop, self._engine, self._server, self._one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way, and free the model. Further calls do nothing."""
        if self._dropped.detach():
            _stop(self._engine, self._server, self._one)

    @overload
    def generate(self, prompts: Prompt, params: SamplingParams = ..., **fields: Any) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = ...,
        **fields: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),
        **fields: Any,
    ) -> Completion | list[Completion]:
        """Continue a text or token ids, or several in one batch; return a Completion for each.

        params: for all prompts, or one for each. fields: further fields of /v1/completions in docs/api.md.
        Raises ApiError; what else was under way for this call is cancelled.
        """
        is_text = isinstance(prompts, str)
        is_one = is_text or (len(prompts) > 0 and all(isinstance(token, int) for token in prompts))
        answers = self._answer([prompts] if is_one else prompts, params, fields)
        return answers[0] if is_one else answers

    @overload
    def chat(
        self, messages: Sequence[Message], params: SamplingParams = ..., **fields: Any
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] = ...,
        **fields: Any,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),
        **fields: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or several in one batch; return a Completion for each.

        messages: in OpenAI's format. An image may be {"type": "image", "image": X} in a message's content,
            where X is a path, the bytes of a file, or an image of Pillow.
        params: for all conversations, or one for each.
        fields: further fields of /v1/chat/completions in docs/api.md, such as tools and tool_choice.
        Raises ApiError; what else was under way for this call is cancelled.
        """
        is_one = len(messages) > 0 and all(isinstance(message, Mapping) for message in messages)
        answers = self._answer([messages] if is_one else messages, params, fields)
        return answers[0] if is_one else answers

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams = SamplingParams(), **fields: Any
    ) -> Stream:
        """Begin an answer to messages, as chat() does, or to a text or token ids, as generate() does.

        Its exceptions are raised by the iteration.
        """
        fields = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        return Stream(self._post(prompt, params, fields), self, is_chat=_is_chat(prompt))

    @overload
    def embed(self, texts: str, **fields: Any) -> list[float]: ...

    @overload
    def embed(self, texts: Sequence[str], **fields: Any) -> list[list[float]]: ...

    def embed(self, texts: str | Sequence[str], **fields: Any) -> list[float] | list[list[float]]:
        """Return the vector of a text, or of each text, from an embedding model; see docs/embeddings.md.

        fields: further fields of /v1/embeddings in docs/api.md, such as dimensions and input_type.
        Raises ApiError.
        """
        found = self._ask("/v1/embeddings", {**fields, "input": texts, "encoding_format": "base64"})
        vectors = [array("f", base64.b64decode(one["embedding"])).tolist() for one in found["data"]]
        return vectors[0] if isinstance(texts, str) else vectors

    def encode(self, text: str) -> list[int]:
        """Return a text's token ids, without special tokens around it."""
        tokens: list[int] = self._ask("/tokenize", {"content": text})["tokens"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids."""
        text: str = self._ask("/detokenize", {"tokens": list(tokens)})["content"]
        return text

    def _answer(
        self,
        prompts: Sequence[Any],
        params: SamplingParams | Sequence[SamplingParams],
        fields: dict[str, Any],
    ) -> list[Completion]:
        chosen = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        calls: list[Call] = []
        try:
            for prompt, own in zip(prompts, chosen, strict=True):
                calls.append(self._post(prompt, own, fields))
            ended, _ = wait([call.whole for call in calls], return_when=FIRST_EXCEPTION)
            for whole in ended:
                # Raises the exception of one that failed, while others may not have ended.
                whole.result()
            return [
                _read_whole(call.whole.result(), _is_chat(one))
                for call, one in zip(calls, prompts, strict=True)
            ]
        finally:
            for call in calls:
                call.cancel()

    def _post(self, prompt: Any, params: SamplingParams, fields: Mapping[str, Any]) -> "Call":
        if "n" in fields:
            raise TypeError("a Completion has one choice: instead of n, pass the prompt several times")
        is_chat = _is_chat(prompt)
        body = {"return_token_ids": True, **params._fields(is_chat=is_chat), **fields}
        if is_chat:
            body["messages"] = [_with_images(message) for message in prompt]
            return self._server.post("/v1/chat/completions", body)
        body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        return self._server.post("/v1/completions", body)

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        call = self._server.post(path, body)
        try:
            return json.loads(call.whole.result())
        finally:
            call.cancel()


def _is_chat(prompt: Any) -> bool:
    """Whether a prompt is messages, and not a text or token ids."""
    return not isinstance(prompt, str) and any(isinstance(one, Mapping) for one in prompt)


def _read_whole(body: bytes, is_chat: bool) -> Completion:
    reader = _Reader(is_chat=is_chat)
    reader.read(json.loads(body))
    return reader.finish()


def _start(settings: Settings, show: Callable[[str, float], None]) -> "tuple[Engine, InProcess]":
    # Logs go where the program has them go, and nowhere if it has not said where.
    logging.getLogger("reprise").addHandler(logging.NullHandler())
    # transformers logs by a handler of its own: that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from sse_starlette.sse import AppStatus

    from reprise.cli.find_model import with_converted, with_found
    from reprise.drafters.assembly import make_drafters
    from reprise.drafters.repetition import score_in_slices
    from reprise.engine.engine import make_engine
    from reprise.engine.speculative.proposers import DraftSources
    from reprise.in_process import InProcess
    from reprise.server.app import create_app

    @contextmanager
    def converting(what: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: show(what, done / max(1, total))

    def make_sources(settings: Settings) -> "MakeSources":
        return lambda vocabulary: DraftSources(make_drafters(settings, vocabulary), score_in_slices)

    settings = with_converted(with_found(settings), converting)
    engine = make_engine(settings, make_sources, on_progress=show)
    settings = engine.settings
    if engine.may_unload and settings.allow_load is None:
        settings = replace(settings, allow_load=True)
    engine.start(show)
    try:
        # The engine ends each stream; sse-starlette would end them with another server of this process.
        AppStatus.enable_automatic_graceful_drain = False
        return engine, InProcess(create_app(engine, settings), settings.max_rows + settings.max_queue)
    except BaseException:
        engine.stop(drain_s=0)
        raise


_CLOSES = "reprise-closes"
"""Name of a thread that closes an LLM."""


def _drop(*parts: Any) -> None:
    """Close an LLM that was dropped, on a thread of its own if need be."""
    # The collector runs on any thread: one that has to end before the LLM is closed cannot wait for that.
    if threading.current_thread() is threading.main_thread():
        _stop(*parts)
    else:
        threading.Thread(target=_stop, args=parts, name=_CLOSES).start()


def _stop(engine: "Engine", server: "InProcess", one: threading.Lock) -> None:
    try:
        engine.stop(drain_s=0)
        server.close()
    finally:
        one.release()


@contextmanager
def _loading_bar(progress: bool | None) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows the progress of a task, in [0, 1]."""
    from tqdm.auto import tqdm

    if progress is None and "ipykernel" in sys.modules:
        progress = True
    # None: not unless standard error is a terminal.
    disable = None if progress is None else not progress
    with tqdm(total=100, unit="%", leave=False, delay=0.5, disable=disable) as bar:

        def show(what: str, share: float) -> None:
            bar.set_description(what, refresh=False)
            bar.n = round(100 * share)
            bar.refresh()

        yield show


def _with_images(message: Message) -> Message:
    """Return a message with its images as data URLs, as the API takes them."""
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    parts = [
        {"type": "image_url", "image_url": {"url": _data_url(part["image"])}}
        if isinstance(part, Mapping) and part.get("type") == "image" and "image" in part
        else part
        for part in content
    ]
    return {**message, "content": parts}


def _data_url(image: Any) -> str:
    """Return a Pillow image, a path or a file's bytes as a data URL."""
    if isinstance(image, str | Path):
        image = Path(image).expanduser().read_bytes()
    elif not isinstance(image, bytes):
        file = io.BytesIO()
        image.save(file, format="PNG")
        image = file.getvalue()
    # The server goes by what the file holds.
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _read_logprobs(given: dict[str, Any]) -> list[Logprob]:
    """Read the log probabilities of a chat, or of a completion."""
    if "content" in given:
        return [
            Logprob(
                one["token"], one["logprob"], {top["token"]: top["logprob"] for top in one["top_logprobs"]}
            )
            for one in given["content"]
        ]
    columns = given["tokens"], given["token_logprobs"], given["top_logprobs"]
    return [Logprob(token, logprob, top or {}) for token, logprob, top in zip(*columns, strict=True)]
