"""Everything that a client can be told went wrong, with what OpenAI's error object says of it.

ApiError
|- BadRequestError            400  the caller's fault; param and code say where and what
|- UnauthorizedError          401  no API key, or none that lets in
|- ForbiddenError             403  a web page of another site asks
|- NotFoundError              404  no such address
|- ModelNotFoundError         404  no such model
|- BodyTimeoutError           408  the client sends too slowly
|- BodyTooLargeError          413
|- ContentTypeError           415
|- HeadersTooLargeError       431
|- TooBusyError               429  the queue is full; Retry-After
|- RequestFailedError         500  this request failed, others go on
|- NotImplementedHereError    501  what this server is not for
`- UnavailableError           503  loading, draining, stalled or dead
ClientGoneError                    nobody is left to be told anything
"""

from collections.abc import Mapping
from math import ceil

from engine.request import RETRY_AFTER_S, EngineError, Failed


class ApiError(Exception):
    """What a client is told: a status and OpenAI's error object.

    param: path of the field at fault, such as messages[0].content.
    code: a word that programs can compare.
    """

    status = 500
    type = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's error object, as a whole response or as one frame of a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequestError(ApiError):
    """The request is wrong, and sending it again will not help."""

    status = 400
    type = "invalid_request_error"


class UnauthorizedError(ApiError):
    """The request has no API key that lets it in."""

    status = 401
    type = "invalid_request_error"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code=code, headers={"WWW-Authenticate": "Bearer"})


class ForbiddenError(ApiError):
    """Whoever asks may not do this."""

    status = 403
    type = "invalid_request_error"


class NotFoundError(ApiError):
    """There is nothing at this address, or not for this method."""

    status = 404
    type = "invalid_request_error"


class ModelNotFoundError(NotFoundError):
    """The model that was asked for is not the one served here."""

    def __init__(self, asked: str, served: tuple[str, ...]) -> None:
        names = " or ".join(f"'{name}'" for name in served)
        super().__init__(
            f"The model '{shortened(asked)}' does not exist here; this server serves {names}.",
            param="model",
            code="model_not_found",
        )


class BodyTimeoutError(ApiError):
    """The client takes too long to send its request."""

    status = 408
    type = "invalid_request_error"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The request did not come within {limit_s:g} seconds. Send it faster, or start the server with "
            "a longer --body-timeout-s.",
            code="body_timeout",
            headers={"Connection": "close"},
        )


class BodyTooLargeError(ApiError):
    """The body is longer than this server reads."""

    status = 413
    type = "invalid_request_error"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than the limit of {limit_bytes} bytes. "
            "Send less, or start the server with a larger --max-body-bytes.",
            code="body_too_large",
        )


class ContentTypeError(ApiError):
    """The body is not said to be JSON. Web pages can post anything else to a local server unasked."""

    status = 415
    type = "invalid_request_error"

    def __init__(self, given: str) -> None:
        super().__init__(
            f"The content type is '{shortened(given)}'; send JSON with the header "
            "Content-Type: application/json.",
            code="unsupported_content_type",
        )


class HeadersTooLargeError(ApiError):
    """There are too many headers."""

    status = 431
    type = "invalid_request_error"

    def __init__(self, num_headers: int, limit: int) -> None:
        super().__init__(
            f"The request has {num_headers} headers; at most {limit} are allowed.", code="too_many_headers"
        )


class TooBusyError(ApiError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"


class RequestFailedError(ApiError):
    """This request failed inside the server; others go on."""

    @classmethod
    def internal(cls, request_id: str) -> "RequestFailedError":
        """For a fault of the server's own, whose trace stands in the log."""
        return cls(f"The server failed on this request; its log has the reason under {request_id}.")


class NotImplementedHereError(ApiError):
    """A thing that the API has and this server does not do."""

    status = 501

    def __init__(self, message: str) -> None:
        # Clients take a 501 for a passing trouble, as any from 500 on; this header tells the SDKs better.
        super().__init__(message, code="not_implemented", headers={"x-should-retry": "false"})


class UnavailableError(ApiError):
    """The engine takes no requests: it is loading, draining, stalled or dead."""

    status = 503


CLIENT_CLOSED_REQUEST = 499
"""What the log says of a request whose client left; nobody receives it."""


class ClientGoneError(Exception):
    """The client left before its answer was complete."""


def retry_after(seconds: float) -> dict[str, str]:
    """The header that says when to try again; it takes whole seconds, and at least one."""
    return {"Retry-After": str(max(1, ceil(seconds)))}


def from_engine(fault: EngineError) -> ApiError:
    """What the client is told when the engine takes no request."""
    later = retry_after(fault.retry_after_s)
    match fault.code:
        case "queue_full":
            return TooBusyError(str(fault), code="queue_full", headers=later)
        case "draining":
            return UnavailableError(str(fault), code="draining", headers=later)
        case "engine_dead":
            return UnavailableError(str(fault), code="engine_dead")


def from_failure(event: Failed) -> ApiError:
    """What the client is told when its sequence came to a bad end."""
    match event.kind:
        case "request":
            return RequestFailedError(event.message, code="request_failed")
        case "engine":
            return UnavailableError(event.message, code="engine_dead")
        case "draining" | "cancelled":
            # The server itself cancels only for clients that left, so this is the end of a drain.
            return UnavailableError(event.message, code="draining", headers=retry_after(RETRY_AFTER_S))


def shortened(text: str, limit: int = 64) -> str:
    """Text from a request, cut so that an error message stays readable."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
