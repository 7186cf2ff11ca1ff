"""Ollama's endpoints: /api/chat, /api/generate, /api/embed and models; and the format of answers."""

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from reprise.config.version import VERSION
from reprise.engine.interface.events import TokenLogprob
from reprise.engine.interface.models import ModelEntry
from reprise.server.errors import (
    ApiError,
    BadRequestError,
    ClientGoneError,
    ModelNotFoundError,
)
from reprise.server.generation.answer import TokenStream, answer, in_its_lines
from reprise.server.generation.embeddings import answer_embeddings, encode_inputs, write_numbers
from reprise.server.generation.list_and_pull import Pull, known_sampling, named_entries, unload
from reprise.server.generation.prepare import Prepared, prepare_chat, prepare_completion
from reprise.server.generation.service import (
    LeasedModel,
    Service,
    find_entry,
    find_loadable,
    lease_model,
    resolve,
    service_of,
)
from reprise.server.http.body import read_body
from reprise.server.http.error_responses import ollama_error
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import note_ignored
from reprise.server.ollama_api.schemas import (
    GeneratingFields,
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModelRequest,
    OllamaPullRequest,
    prompt_to_chat,
    to_chat,
    to_completion,
)
from reprise.server.output.parts import (
    ChoiceOutput,
    EndPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.output.presenter import LINES, Json, OneChoicePresenter, chat_logprobs
from reprise.server.requests.embeddings import EmbeddingsRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.generation_fields import KeepAlive, keep_alive_s

NS_PER_MS = 1_000_000


class LinePresenter(OneChoicePresenter):
    """Presenter for /api/chat, or for /api/generate.

    model: the model's name in the request. is_chat: whether the endpoint is /api/chat.
    The durations in its responses count from the presenter's creation.
    """

    stream_type = LINES

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self.model = model
        self._is_chat = is_chat
        self._begun_ns = self._loaded_ns = time.perf_counter_ns()

    def note_loaded(self) -> None:
        """Note that the model is loaded."""
        self._loaded_ns = time.perf_counter_ns()

    def format_done(self, reason: Literal["load", "unload"]) -> bytes:
        """Return the response to a request that only loads or unloads a model. reason: its done_reason."""
        return to_json(self._line("", done=True, done_reason=reason))

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter."""
        (output,) = outputs
        said: Json = {"thinking": output.reasoning} if output.reasoning else {}
        if output.tool_calls:
            said["tool_calls"] = [_call(call) for call in output.tool_calls]
        logprobs = _logprobs(output.logprobs)
        return to_json(self._line(output.text, said, **logprobs, **self._end(output.end, usage, timings)))

    def format_silence(self) -> bytes:
        """See Presenter. Clients expect a part of the response in every line, so send one without text."""
        return to_json(self._line("")) + b"\n"

    def _ending(self, end: EndPart, usage: Json, timings: Json) -> bytes:
        return to_json(self._line("", **self._end(end, usage, timings))) + b"\n"

    def _part(self, part: Part) -> bytes:
        match part:
            case TextPart() if part.text or part.logprobs:
                line = self._line(part.text, **_logprobs(part.logprobs))
            case ReasoningPart() if part.text:
                line = self._line("", {"thinking": part.text})
            case ToolCallPart():
                line = self._line("", {"tool_calls": [_call(part)]})
            case _:
                return b""
        return to_json(line) + b"\n"

    def _line(self, text: str, said: Json | None = None, **more: object) -> Json:
        """Return a response, or a line of one. said: fields besides the text."""
        line: Json = {"model": self.model, "created_at": written(datetime.now(UTC))}
        if self._is_chat:
            line["message"] = {"role": "assistant", "content": text, **(said or {})}
        else:
            line |= {"response": text, **(said or {})}
        return line | {"done": False} | more

    def _end(self, end: EndPart, usage: Json, timings: Json) -> Json:
        """Return the counts of the last line. Durations are in nanoseconds; counts include cached tokens."""
        return {
            "done": True,
            "done_reason": "length" if end.finish_reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self._begun_ns,
            "load_duration": self._loaded_ns - self._begun_ns,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": round(timings["prompt_ms"] * NS_PER_MS),
            "eval_count": usage["completion_tokens"],
            "eval_duration": round(timings["predicted_ms"] * NS_PER_MS),
            **end.checked,
        }


def written(moment: datetime) -> str:
    """Return a time in Ollama's format. moment: in UTC."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def _call(call: ToolCallPart) -> Json:
    function = {"index": call.index, "name": call.name, "arguments": from_json(call.arguments)}
    return {"id": call.id, "function": function}


def _logprobs(entries: Sequence[TokenLogprob]) -> Json:
    return {"logprobs": chat_logprobs(entries)} if entries else {}


TAG = ":latest"
"""The end of a model's name that Ollama's clients add where there is none."""


OLLAMA_VERSION = "0.32.15"
"""The version of Ollama whose API this is; clients refuse older ones than they know."""
FOREVER = "9999-12-31T23:59:59Z"


def _named(name: str, entry: ModelEntry) -> Json:
    # Ollama's own client shows a part of it; nothing here is looked up by it.
    digest = hashlib.sha256(f"{entry.name} {entry.size_bytes}".encode()).hexdigest()
    # Some clients look for the name with its tag.
    shown = name if ":" in name.rpartition("/")[2] else f"{name}{TAG}"
    known = {"name": shown, "model": shown, "size": entry.size_bytes, "digest": digest}
    return {**known, "details": _details(entry)}


def _details(entry: ModelEntry) -> Json:
    """Return a model's details, such as family and size: fewer before it is loaded."""
    info = entry.info
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": info.architecture if info else "",
        "families": [info.architecture] if info else [],
        "parameter_size": info.short_size if info else "",
        "quantization_level": info.dtype if info else "",
    }


def _facts(entry: ModelEntry) -> Json:
    info, kind = entry.info, entry.info.architecture if entry.info else "unknown"
    facts: Json = {"general.architecture": kind}
    if entry.context_tokens:
        facts[f"{kind}.context_length"] = entry.context_tokens
    if entry.embedding:
        facts[f"{kind}.embedding_length"] = entry.embedding.dimensions
    if info:
        facts["general.parameter_count"] = info.num_parameters
        facts |= {f"{kind}.block_count": info.num_layers, f"{kind}.vocab_size": info.vocab_size}
    return facts


def _capabilities(entry: ModelEntry) -> list[str]:
    if entry.purpose != "generate":
        return ["embedding"] if entry.purpose == "embed" else []
    known = {
        "tools": entry.can_call,
        "thinking": entry.can_think,
        "insert": entry.can_infill,
        "vision": entry.vision is not None,
    }
    return ["completion", *(name for name, can in known.items() if can)]


router = APIRouter()
BODIES = (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModelRequest,
    OllamaPullRequest,
)


@router.post("/api/chat", openapi_extra=body_schema(OllamaChatRequest, in_lines=True))
async def chat(request: Request) -> Response:
    """Generate the next message of a conversation, in Ollama's format."""
    body = await read_body(request, OllamaChatRequest)

    def prepare(leased: LeasedModel, _model: str) -> Prepared:
        chat = to_chat(body, body.messages, tools=body.tools)
        return prepare_chat(request, leased, chat, streams_calls=False)

    return await _answer(request, body, prepare if body.messages else None)


@router.post("/api/generate", openapi_extra=body_schema(OllamaGenerateRequest, in_lines=True))
async def generate(request: Request) -> Response:
    """Answer a prompt, continue a text (raw) or fill in what is before a suffix, in Ollama's format."""
    body = await read_body(request, OllamaGenerateRequest)

    def prepare(leased: LeasedModel, model: str) -> Prepared:
        if not body.is_plain:
            return prepare_chat(request, leased, prompt_to_chat(body))
        notes = Notes(leased.settings.unknown_fields == "refuse")
        asked = to_completion(body, notes)
        note_ignored(request, notes.entries())
        return prepare_completion(request, leased, asked, model)

    return await _answer(request, body, prepare if body.prompt or body.suffix else None)


async def _answer(
    request: Request, body: GeneratingFields, prepare: Callable[[LeasedModel, str], Prepared] | None
) -> Response:
    """Answer a request that generates.

    prepare: gets the model and its name in the request. None only loads the model, or with keep_alive 0
        unloads it.
    """
    service = _ready(request)
    presenter = LinePresenter(
        body.model or service.model_names[0], is_chat=isinstance(body, OllamaChatRequest)
    )
    name = _own_name(service, body.model)
    if prepare is not None:
        silence = presenter.format_silence() if body.stream else None
        leased = await lease_model(request, name, silence=silence, keep_alive=body.keep_alive)
        presenter.note_loaded()
        return await answer(request, leased, partial(prepare, leased, presenter.model), presenter)
    unloads = _is_zero(body.keep_alive)
    if not unloads:
        await lease_model(request, name, keep_alive=body.keep_alive)
    elif service.models.may_unload:
        await unload(request, name)
    else:
        await find_loadable(service, resolve(service, name))
        note_ignored(request, ["keep_alive"])
    return Response(presenter.format_done("unload" if unloads else "load"), media_type="application/json")


def _is_zero(keep_alive: KeepAlive) -> bool:
    try:
        return keep_alive_s(keep_alive) == 0
    except BadRequestError:
        # lease_model() says so, if it has an effect at all.
        return False


def _own_name(service: Service, name: str | None) -> str | None:
    """Return a model's name here. name: as Ollama's clients send it, maybe tagged."""
    known = (*service.model_names, *service.settings.served_model_name)
    return name if name is None or name in known else name.removesuffix(TAG)


def _ready(request: Request) -> Service:
    """Return the service. Raises UnavailableError unless the engine accepts requests."""
    service = service_of(request)
    service.check_ready()
    return service


@router.get("/api/version")
async def version() -> JSONResponse:
    """Return the version of Ollama whose API this is, and Reprise's own."""
    return JSONResponse({"version": OLLAMA_VERSION, "reprise": VERSION})


@router.get("/api/tags")
async def tags(request: Request) -> JSONResponse:
    """List the models that requests may ask for, with the tag latest, in Ollama's format."""
    service = _ready(request)
    shared = {"modified_at": written(datetime.fromtimestamp(service.created, UTC))}
    named = await named_entries(service)
    listed = [
        {**_named(name, entry), **shared, "capabilities": _capabilities(entry)}
        for name, entry in named.items()
    ]
    return JSONResponse({"models": listed})


@router.get("/api/ps")
async def running(request: Request) -> JSONResponse:
    """List the models that are loaded, in Ollama's format."""
    service = _ready(request)
    loaded = []
    for entry in (one for one in service.models.loaded_entries() if one.state == "loaded"):
        left_s = entry.idle_left_s
        ends = FOREVER if left_s is None else written(datetime.now(UTC) + timedelta(seconds=left_s))
        sizes = {"size_vram": entry.size_bytes, "context_length": entry.context_tokens or 0}
        loaded.append({**_named(entry.name, entry), "expires_at": ends, **sizes})
    return JSONResponse({"models": loaded})


@router.post("/api/show", openapi_extra=body_schema(OllamaModelRequest))
async def show(request: Request) -> JSONResponse:
    """Describe a model in Ollama's format. Of one that was never loaded less is known."""
    body = await read_body(request, OllamaModelRequest)
    service = _ready(request)
    name = _own_name(service, body.model)
    entry = await find_entry(service, resolve(service, name or service.model_names[0]))
    parameters = {"num_ctx": str(entry.context_tokens)} if entry.context_tokens else {}
    sampling = known_sampling(service, entry.info) if entry.info else {}
    parameters |= {name: f"{value:g}" for name, value in sampling.items()}
    described = {
        "license": "",
        "modelfile": "",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        # Continue takes this word for a sign that the model fills in.
        "template": "{{ .Prompt }}{{ .Suffix }}" if entry.can_infill else "{{ .Prompt }}",
        "details": _details(entry),
        "model_info": _facts(entry),
        "capabilities": _capabilities(entry),
        "modified_at": written(datetime.fromtimestamp(service.created, UTC)),
    }
    return JSONResponse(described)


@router.post("/api/pull", openapi_extra=body_schema(OllamaPullRequest, in_lines=True))
async def pull(request: Request) -> Response:
    """Download a model from the hub, in Ollama's format. A model that is here is there at once.

    Others only where there are several models.
    """
    body = await read_body(request, OllamaPullRequest)
    if await _is_here(_ready(request), body.model):
        return Response(b'{"status":"success"}\n', media_type=LINES if body.stream else "application/json")
    download = Pull(service_of(request), body.model.removesuffix(TAG))

    async def lines() -> AsyncIterator[bytes]:
        async for state in download.states(request):
            told = ollama_error(state) if isinstance(state, ApiError) else asdict(state)
            yield in_its_lines(to_json(told) + b"\n")

    if body.stream:
        return TokenStream(lines(), LINES, at_end=download.stop)
    try:
        async for state in download.states(request):
            if isinstance(state, ApiError):
                raise state
            if await request.is_disconnected():
                raise ClientGoneError
        return JSONResponse({"status": "success"})
    finally:
        await download.stop()


async def _is_here(service: Service, model: str) -> bool:
    """Return whether a model can be loaded without a download."""
    try:
        entry = await find_entry(service, resolve(service, _own_name(service, model)))
    except ModelNotFoundError:
        return False
    return entry.fault is None


@router.post("/api/embed", openapi_extra=body_schema(OllamaEmbedRequest))
async def embed_texts(request: Request) -> Response:
    """Make a vector of each text, in Ollama's format."""
    body = await read_body(request, OllamaEmbedRequest)
    cut = "end" if body.truncate else "none"
    asked = EmbeddingsRequest.model_construct(input=body.input, dimensions=body.dimensions, truncate=cut)
    begun_ns = time.perf_counter_ns()

    def write(vectors: Sequence[bytes], num_tokens: int, name: str, loaded_ns: int) -> bytes:
        told = {
            "model": body.model or name,
            "total_duration": time.perf_counter_ns() - begun_ns,
            "load_duration": loaded_ns - begun_ns,
            "prompt_eval_count": num_tokens,
        }
        return b'{"embeddings":[' + b",".join(map(write_numbers, vectors)) + b"]," + to_json(told)[1:]

    return await _embed(request, body, asked, write)


@router.post("/api/embeddings", openapi_extra=body_schema(OllamaEmbeddingsRequest))
async def embed_text(request: Request) -> Response:
    """Make the vector of a text, as older clients of Ollama ask for it."""
    body = await read_body(request, OllamaEmbeddingsRequest)
    texts = (body.prompt,) if body.prompt else ()
    asked = EmbeddingsRequest.model_construct(input=texts, truncate="end")

    def write(vectors: Sequence[bytes], _num_tokens: int, **_: object) -> bytes:
        return b'{"embedding":' + (write_numbers(vectors[0]) if vectors else b"[]") + b"}"

    return await _embed(request, body, asked, write)


async def _embed(
    request: Request,
    body: OllamaEmbedRequest | OllamaEmbeddingsRequest,
    asked: EmbeddingsRequest,
    write: Callable[..., bytes],
) -> Response:
    """Answer a request for embeddings. asked: the equivalent request to /v1/embeddings.

    write: is called as in answer_embeddings(), and with the model's name and loaded_ns, when it was loaded.
    """
    name = _own_name(_ready(request), body.model)
    leased = await lease_model(request, name, keep_alive=body.keep_alive, purpose="embed")
    told = partial(write, name=leased.name, loaded_ns=time.perf_counter_ns())
    if not asked.input:
        return Response(told((), 0), media_type="application/json")
    encode = partial(encode_inputs, request, leased, asked)
    return await answer_embeddings(request, leased, encode, told, asked.dimensions)


@router.post("/api/create", status_code=501, include_in_schema=False)
@router.post("/api/copy", status_code=501, include_in_schema=False)
@router.post("/api/push", status_code=501, include_in_schema=False)
@router.post("/api/blobs/{digest}", status_code=501, include_in_schema=False)
@router.delete("/api/delete", status_code=501, include_in_schema=False)
async def change_files() -> Response:
    """Answer 501: models are made, copied and deleted by commands, not by requests."""
    raise ApiError(
        "This server makes, copies, uploads and deletes no models for requests. Use the commands `reprise "
        "convert`, `reprise pull` and `reprise rm` on its machine.",
        status=501,
        code="not_implemented",
        # The SDKs retry every status from 500 on; this header stops them.
        headers={"x-should-retry": "false"},
    )
