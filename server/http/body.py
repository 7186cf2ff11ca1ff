"""Read request bodies within limits of size and time; check content type, decompress and validate."""

import asyncio
import zlib
from functools import partial
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reprise.server.errors import ApiError, BadRequestError, requested_name, shortened
from reprise.server.http.error_responses import refuse
from reprise.server.http.executor import SMALL_BYTES, Executor, client_of
from reprise.server.logs import record_in
from reprise.server.requests.fields import Notes, validate
from reprise.server.requests.json_body import parse_liberally

ModelT = TypeVar("ModelT", bound=BaseModel)

SLICE_BYTES = 2**20
"""Bytes that are decoded at a time; in between, the event loop serves others."""
INPUT_BYTES = 2**16
"""Bytes of the body that are read at a time: zlib copies what it has not decoded yet."""
MAX_MEMBERS = 1024
"""Maximum gzip texts in one body, one behind the other. Each takes a decoder."""
_AUTOMATIC, _RAW = 47, -15
"""How zlib reads gzip's and zlib's headers, and data without a header."""
MAX_HEADERS = 100
VALUE_BYTES = 20
"""The work of parsing and validating a value, besides its text, in bytes of text."""


async def decoded(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """Decompress a body to at most limit_bytes; little more than that is ever held in memory.

    Raises ApiError if the text is longer, or the body is not one complete stream. A stream of gzip may have
    several members (RFC 1952).
    """
    # Some clients leave deflate's header out.
    has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    decoder = zlib.decompressobj(_AUTOMATIC if has_header or coding != "deflate" else _RAW)
    text, num_members = bytearray(), 1
    for start in range(0, len(body), INPUT_BYTES):
        rest, has_more = body[start : start + INPUT_BYTES], False
        while rest or has_more:
            if decoder.eof:
                if coding == "deflate" or num_members == MAX_MEMBERS:
                    raise _bad_encoding(coding)
                decoder, num_members = zlib.decompressobj(_AUTOMATIC), num_members + 1
            room = min(SLICE_BYTES, limit_bytes + 1 - len(text))
            try:
                part = decoder.decompress(rest, room)
            except zlib.error:
                raise _bad_encoding(coding) from None
            text += part
            if len(text) > limit_bytes:
                raise _too_large(limit_bytes)
            rest = decoder.unconsumed_tail or decoder.unused_data
            # zlib may have read all and still hold the end of a repetition.
            has_more = len(part) == room and not decoder.eof
            await asyncio.sleep(0)
    if not decoder.eof:
        raise _bad_encoding(coding)
    return bytes(text)


def _bad_encoding(coding: str) -> BadRequestError:
    return BadRequestError(
        f"The request body is not whole data of the Content-Encoding '{coding}'. Compress it again, or leave "
        "the header out if the body is not compressed.",
        code="invalid_content_encoding",
    )


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        f"The request body is larger than the limit of {limit_bytes} bytes. Send a smaller body.",
        status=413,
        code="body_too_large",
    )


MAX_BODY_BYTES = 32 * 2**20
"""Maximum size of a request body, as in Anthropic's API. It holds for the decompressed body too."""

BODY_TIMEOUT_S = 60.0
"""Seconds that a client may take to send a request's headers, and again to send its body."""


class BodyLimit:
    """ASGI middleware that refuses large bodies (413), slow bodies (408) and too many headers (431).

    The size limit applies with and without a Content-Length header, and to the decompressed body too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and pass the request on, or send an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, more_body = bytearray(), True
        try:
            coding = self._check_headers(Headers(scope=scope))
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while more_body and len(body) <= MAX_BODY_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more_body = message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                raise _too_large(MAX_BODY_BYTES)
            whole = bytes(body) if coding is None else await decoded(bytes(body), coding, MAX_BODY_BYTES)
        except TimeoutError:
            slow = ApiError(
                f"The request body did not arrive within {BODY_TIMEOUT_S:g} seconds. Send it faster.",
                status=408,
                code="body_timeout",
                headers={"Connection": "close"},
            )
            await refuse(slow, scope, receive, send, lingers=False)
        except ApiError as fault:
            await refuse(fault, scope, receive, send, lingers=more_body)
        else:
            # What follows the body is a disconnect.
            first: list[Message] = [{"type": "http.request", "body": whole, "more_body": False}]

            async def replay() -> Message:
                return first.pop() if first else await receive()

            await self.app(scope, replay, send)

    def _check_headers(self, headers: Headers) -> str | None:
        """Return the body's content encoding, if any. Raises ApiError if the headers announce too much."""
        if (num_headers := len(headers)) > MAX_HEADERS:
            raise ApiError(
                f"The request has {num_headers} headers; at most {MAX_HEADERS} are allowed. Send fewer.",
                status=431,
                code="too_many_headers",
            )
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
            raise _too_large(MAX_BODY_BYTES)
        given = headers.get("content-encoding", "")
        coding = given.strip().lower()
        if coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ApiError(
                f"The Content-Encoding '{shortened(given)}' is not supported. Send the body as it is, or "
                "compressed with gzip or deflate.",
                status=415,
                code="unsupported_content_encoding",
                headers={"Accept-Encoding": "gzip, deflate"},
            )
        return None if coding in ("", "identity") else coding


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """Read and validate a request's body. Raises ApiError."""
    _check_content_type(request)
    body = await request.body()
    notes = Notes(request.app.state.service.settings.unknown_fields == "refuse")
    record = record_in(request.scope)
    parse = partial(parse_liberally, body, model, record.field_names, notes)
    # The work of parsing it, as the number of bytes of plain text that takes as long.
    weight = len(body) if len(body) > SMALL_BYTES else len(body) + VALUE_BYTES * body.count(b",")
    executor: Executor = request.app.state.service.executor
    parsed = parse() if weight <= SMALL_BYTES else await executor.run(client_of(request), weight, parse)
    record.ignored += notes.entries()
    own = getattr(model, "names", {}).items()
    record.field_names |= {name: requested_name(path, record.field_names) for name, path in own}
    return parsed


def _check_content_type(request: Request) -> None:
    """Raise ApiError unless the content type is JSON or missing.

    That keeps web pages out, which can post other content types, or none, without a CORS preflight.
    """
    content_type = request.headers.get("content-type", "")
    media_type = content_type.split(";")[0].strip().lower()
    # Browsers say where each post comes from.
    is_untyped = not media_type and not {"origin", "sec-fetch-site"} & set(request.headers)
    if not is_untyped and media_type != "application/json" and not media_type.endswith("+json"):
        named = f"The Content-Type '{shortened(content_type)}' is not supported"
        fault = named if content_type else "Content-Type is missing"
        raise ApiError(
            f"{fault}. Send JSON with the header Content-Type: application/json.",
            status=415,
            code="unsupported_content_type",
        )


def read_query(request: Request, model: type[ModelT]) -> ModelT:
    """Validate a request's query; leave out parameters that the model lacks. Raises BadRequestError."""
    notes = Notes(request.app.state.service.settings.unknown_fields == "refuse")
    # Lists are sent as name[]=... or as name=... more than once; none of them has an effect.
    given = {name.removesuffix("[]"): value for name, value in request.query_params.items()}
    query = validate(given, model, notes)
    record_in(request.scope).ignored += notes.entries()
    return query
