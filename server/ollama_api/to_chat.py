"""Convert requests of Ollama's API to chat requests and completions."""

from collections.abc import Collection
from typing import Any, TypeVar

from reprise.server.conversation.model import Message
from reprise.server.conversation.ollama import images_of
from reprise.server.ollama_api.schemas import GeneratingFields, OllamaChatRequest, OllamaGenerateRequest
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.validation.field_errors import validate
from reprise.server.validation.notes import Notes

RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)
_RENAMED = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
TAG = ":latest"
"""The end of a model's name that Ollama's clients add where there is none."""


def untagged(name: str | None, known: Collection[str]) -> str | None:
    """Return a model's name without Ollama's default tag, unless a model is known by the name with the tag.

    known: the names of the server's models.
    """
    return name if name is None or name in known else name.removesuffix(TAG)


def tagged(name: str) -> str:
    """Return a model's name, with a tag if it has none: some clients look for the tagged name in lists."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{TAG}"


def to_chat_request(body: OllamaChatRequest) -> ChatRequest:
    """Return the chat request. Raises BadRequestError."""
    return _chat(body, body.messages, tools=body.tools)


def prompt_to_chat(body: OllamaGenerateRequest) -> ChatRequest:
    """Return a chat request with the prompt as the user's message. Raises BadRequestError."""
    images = images_of(body.images, "images") if body.images else []
    system = [Message("system", (body.system,), at="system")] if body.system else []
    return _chat(body, (*system, Message("user", (*images, body.prompt), at="prompt")))


def to_completion(body: OllamaGenerateRequest, notes: Notes) -> CompletionRequest:
    """Return the completions request that continues a text, or fills in the hole before a suffix.

    Raises BadRequestError.
    """
    for name in ("images", "think"):
        if getattr(body, name) not in ([], None):
            notes.left_out(name, is_peers=True)
    logprobs = body.top_logprobs if body.logprobs else None
    given = {"prompt": body.prompt, "suffix": body.suffix or None, "logprobs": logprobs}
    return _validated(_common(body) | given, CompletionRequest)


def _chat(body: GeneratingFields, messages: tuple[Message, ...], **more: Any) -> ChatRequest:
    if isinstance(body.think, bool):
        more["chat_template_kwargs"] = {"enable_thinking": body.think}
    elif body.think:
        more["reasoning_effort"] = body.think
    if body.logprobs:
        more |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    given = {
        "messages": messages,
        "truncation": "auto" if body.truncate else "disabled",
        "continue_final_message": messages[-1].can_continue,
    }
    return _validated(_common(body) | given | more, ChatRequest)


def _validated(given: dict[str, Any], model: type[RequestT]) -> RequestT:
    """Validate a translated request. Ollama's temperature has no limit, other than OpenAI's."""
    temperature = {"temperature": given.pop("temperature", None)}
    request = validate(given, model)
    return request if temperature["temperature"] is None else request.model_copy(update=temperature)


def _common(body: GeneratingFields) -> dict[str, Any]:
    """Return the fields that chats and completions share."""
    options = {name: getattr(body.options, name) for name in body.options.model_fields_set}
    if (limit := options.get("num_predict")) is not None and limit <= 0:
        del options["num_predict"]
    if options.get("seed") == -1:
        del options["seed"]
    if "stop" in options:
        options["stop"] = list(options["stop"])
    common: dict[str, Any] = {"stream": body.stream, "draft": body.draft}
    if body.format == "json":
        common["response_format"] = {"type": "json_object"}
    elif body.format:
        common["guided_json"] = body.format
    return common | {_RENAMED.get(name, name): value for name, value in options.items()}
