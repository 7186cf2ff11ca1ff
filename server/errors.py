"""The errors that a client can get: classes, statuses, and conversions from the engine's errors.

Messages about bodies and headers are where they are checked: http/body.py, http/access.py. Those about full
queues are in engine/pool/model_engine.py (running or waiting), engine/engine.py (for a model) and
generation/service.py (unprepared prompts). Sending errors: http/error_responses.py.
"""

from collections.abc import Mapping
from copy import copy
from math import ceil
from typing import Any

from reprise.config.errors import RepriseError
from reprise.engine.interface.errors import RETRY_AFTER_S, EngineError, ModelLoadError
from reprise.engine.interface.events import Failed

_VENDORS = ("claude-", "gpt-")
"""Beginnings of the names that agents ask for unless they are told another."""
LOAD_RETRY_S = 10.0
"""Seconds after which to ask again for a model that could not be loaded for now."""
CLIENT_CLOSED_REQUEST = 499
"""The status that is logged for a request whose client disconnected. It is never sent."""

STATUSES = (
    (400, "The request is wrong. Sending it again unchanged will not help."),
    (400, "The prompt leaves no room in the context."),
    (400, "The body is not compressed as its Content-Encoding says, or it is cut off."),
    (401, "The API key is missing or invalid."),
    (403, "The request's Host or Origin header is not allowed, or it may not load models."),
    (404, "The endpoint or the object does not exist, or the endpoint does not allow the method (405)."),
    (404, "The requested model is not one that this server serves."),
    (408, "The client took too long to send the request body."),
    (409, "The request is right, but the server as it was started cannot do it."),
    (413, "The request body is larger than 32 MiB."),
    (415, "The Content-Type is not JSON."),
    (415, "The body is compressed in a way that is not decoded here."),
    (429, "The request queue is full, or as many downloads run as may."),
    (431, "The request has too many headers."),
    (500, "The request failed inside the server. Other requests are not affected."),
    (501, "The API has this endpoint, but this server does not implement it."),
    (503, "The server cannot take the request now: it loads, drains, has stalled or died, or was too slow."),
)
"""The statuses of errors and what each can mean, as docs/api.md lists them."""


def type_of(status: int) -> str:
    """Return OpenAI's error type for a status."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < CLIENT_CLOSED_REQUEST else "server_error"


def requested_name(path: str, names: Mapping[str, str]) -> str:
    """Return a field's path under the request's own name for the field.

    path: with this API's name. names: this API's field names -> the request's.
    """
    found = (own for own in names if path == own or path.startswith((f"{own}.", f"{own}[")))
    own = max(found, key=len, default="")
    return names.get(own, own) + path[len(own) :]


class ApiError(RepriseError):
    """An error response: a status and OpenAI's error object.

    status: one of STATUSES; by default the class's.
    param: path of the field at fault, such as messages[0].content.
    code: a machine-readable error code.
    """

    status = 500

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status or self.status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @staticmethod
    def of(error: Mapping[str, Any], status: int | None = None) -> "ApiError":
        """Restore an error from its JSON. error: see body(). status: None for that of the error's type."""
        status = status or {type_of(400): 400, type_of(429): 429}.get(error["type"], 500)
        kind = next((one for one in ApiError.__subclasses__() if one.status == status), ApiError)
        return kind(error["message"], status=status, param=error["param"], code=error["code"])

    def __copy__(self) -> "ApiError":
        # An exception is otherwise copied by calling its class with its message, which some cannot take.
        error = type(self).__new__(type(self), *self.args)
        error.__dict__.update(self.__dict__)
        return error

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """Return the same error under the request's name of the field at fault. names: see requested_name."""
        param = self.param and requested_name(self.param, names)
        if param == self.param:
            return self
        error = copy(self)
        error.message = self.message.replace(f"'{self.param}'", f"'{param}'")
        error.param = param
        return error

    def worded(self, path: str) -> "ApiError":  # noqa: ARG002 - for the error that depends on it
        """Return the same error, worded as clients of the API at this path expect."""
        return self

    @property
    def type(self) -> str:
        """OpenAI's error type."""
        return type_of(self.status)

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return OpenAI's error object: the body of a response, or one event of a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequestError(ApiError):
    """The request is wrong."""

    status = 400


def bad_field(param: str, phrase: str, code: str = "invalid_value") -> BadRequestError:
    """Make the error for a field. phrase: the message after the field's name, without the full stop."""
    param = shortened(param, 200)
    return BadRequestError(f"'{param}' {phrase}.", param=param, code=code)


class ContextLengthError(BadRequestError):
    """The prompt leaves no room in the context.

    Agents condense their conversation only when they recognize their vendor's sentence; otherwise they send
    the same prompt again and again. So the message is that sentence, followed by the way out.
    """

    CODE = "context_length_exceeded"

    def __init__(self, num_tokens: int, context_tokens: int, param: str, way_out: str) -> None:
        noun = "messages" if param in ("messages", "tools") else "prompt"
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens. However, your {noun} resulted "
            f"in {num_tokens} tokens. Please reduce the length of the {noun}. {way_out}",
            param=param,
            code=self.CODE,
        )
        self._num_tokens, self._context_tokens, self._way_out = num_tokens, context_tokens, way_out

    def worded(self, path: str) -> ApiError:
        """See ApiError."""
        error = copy(self)
        if path.startswith("/v1/messages"):
            # One token of the context is kept for the answer, so this maximum is always exceeded.
            counts = f"{self._num_tokens} tokens > {self._context_tokens - 1} maximum"
            error.message = f"prompt is too long: {counts}. {self._way_out}"
        if path.startswith("/v1/responses"):
            sentence = "Your input exceeds the context window of this model."
            error.message = f"{sentence} Please adjust your input and try again. {self._way_out}"
        return error


class ForbiddenError(ApiError):
    """The request is not allowed to do this."""

    status = 403


class NotFoundError(ApiError):
    """There is no such endpoint, object or model."""

    status = 404


class ModelNotFoundError(NotFoundError):
    """The requested model is not one that this server serves."""

    def __init__(self, requested: str, served: tuple[str, ...] = ()) -> None:
        names = " or ".join(f"'{name}'" for name in served)
        known = f"this server serves {names}" if served else "GET /v1/models lists those that do"
        is_vendors = requested.startswith(_VENDORS)
        agents = " `reprise connect AGENT` gives a coding agent the right name." if is_vendors else ""
        super().__init__(
            f"The model '{shortened(requested)}' does not exist; {known}. Start it with "
            f"--served-model-name '*' to have it answer to any name.{agents}",
            param="model",
            code="model_not_found",
        )


class TooBusyError(ApiError):
    """Too many requests wait or run."""

    status = 429


class RequestFailedError(ApiError):
    """The request failed inside the server."""

    @classmethod
    def internal(cls, request_id: str) -> "RequestFailedError":
        """Make the error for a bug in the server, whose traceback is in the log."""
        return cls(
            f"The server failed while serving this request. Its log has the reason under {request_id}."
        )


class UnavailableError(ApiError):
    """The server cannot take the request now."""

    status = 503


class ClientGoneError(Exception):
    """The client disconnected before the response was complete."""


def retry_after(seconds: float) -> dict[str, str]:
    """Return the Retry-After header: whole seconds, at least one."""
    return {"Retry-After": str(max(1, ceil(seconds)))}


def from_engine(fault: EngineError) -> ApiError:
    """Make the error for a request that the engine refuses."""
    headers = {} if fault.code == "engine_dead" else retry_after(fault.retry_after_s)
    kind = TooBusyError if fault.code == "queue_full" else UnavailableError
    return kind(str(fault), code=fault.code, headers=headers)


def from_load(fault: Exception) -> ApiError:
    """Convert the error of a failed load; a TimeoutError carries the model's name.

    Raises the exception itself if it is neither an engine's nor a load's error.
    """
    if isinstance(fault, TimeoutError):
        return UnavailableError(
            f"The model '{fault}' was not loaded in time. Try again later.",
            code="load_timeout",
            headers=retry_after(LOAD_RETRY_S),
        )
    if isinstance(fault, EngineError):
        return from_engine(fault)
    if not isinstance(fault, ModelLoadError):
        raise fault
    message = f"{str(fault)[:1].upper()}{str(fault)[1:]}."
    match fault.kind:
        case "unknown":
            return NotFoundError(message, param="model", code="model_not_found")
        case "not_loadable" | "too_large":
            return BadRequestError(message, param="model", code=f"model_{fault.kind}")
        case "draining":
            return UnavailableError(message, code="draining", headers=retry_after(RETRY_AFTER_S))
        case "unreachable" | "no_space":
            code = "disk_full" if fault.kind == "no_space" else "hub_unreachable"
            return UnavailableError(message, code=code, headers=retry_after(LOAD_RETRY_S))


def from_failure(event: Failed, grammar_param: str) -> ApiError:
    """Make the error for a sequence that failed. grammar_param: the request's field with the grammar."""
    match event.kind:
        case "grammar":
            return BadRequestError(
                f"'{grammar_param}' {event.message}. Simplify it: rules that match the same text in several "
                "ways take the most time.",
                param=grammar_param,
                code="grammar_too_complex",
            )
        case "request":
            return RequestFailedError(event.message, code="request_failed")
        case "engine":
            return UnavailableError(event.message, code="engine_dead")
        case "draining" | "cancelled":
            # The server cancels a sequence only if its client has left; a client still here is drained.
            return UnavailableError(event.message, code="draining", headers=retry_after(RETRY_AFTER_S))


def shortened(text: str, limit: int = 64) -> str:
    """Cut text from a request to at most limit characters, so that an error message stays readable."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
