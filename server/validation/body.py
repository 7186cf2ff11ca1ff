"""Read, parse and validate request bodies, within limits."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from pydantic import BaseModel
from pydantic_core import from_json

from engine.stations import station
from server.errors import BadRequestError, ContentTypeError
from server.logs import is_logging_prompts, log_prompt, record_in
from server.validation.field_errors import validate, validate_known
from server.validation.fields import AcceptsPeerFields
from server.validation.notes import Notes
from server.validation.peer_fields import translate_fields

ModelT = TypeVar("ModelT", bound=BaseModel)

SMALL_BYTES = 32 * 2**10
"""Larger bodies are parsed on a thread: they would block the event loop for longer than the switch takes."""
MAX_VALUES, MAX_CONTAINERS = 1_000_000, 100_000
"""Limits of a body: several times what a full context of token ids, or the longest conversation, needs.

Millions of values take gigabytes, and seconds in which the GIL keeps every other thread from running.
"""
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rf"((?<!\\)(?:\\\\)*)(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})")
"""Half of a character of JavaScript: agents leave one where they cut a text in the middle of an emoji."""
MAX_MENDED = 8 * 2**20
"""Maximum characters of a body in which they are replaced, up to 0.1 us for each with the GIL held."""
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="body")


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """Read and validate a request's body. Its size has been checked by BodyLimit.

    Raises BadRequestError or ContentTypeError.
    """
    # Requiring JSON keeps web pages out: they can post other content types without a CORS preflight.
    content_type = request.headers.get("content-type", "")
    media_type = content_type.split(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ContentTypeError(content_type)
    body = await request.body()
    notes = Notes(request.app.state.service.settings.unknown_fields == "refuse")
    record = record_in(request.scope)
    parse = partial(parse_liberally, body, model, record.field_names, notes)
    if len(body) <= SMALL_BYTES:
        parsed = parse()
    else:
        parsed = await asyncio.get_running_loop().run_in_executor(_THREAD, parse)
    record.ignored += notes.entries()
    if is_logging_prompts():
        log_prompt("asked", body.decode())
    return parsed


@station("bodies")
def parse_body(body: bytes, model: type[ModelT]) -> ModelT:
    """Parse a body and validate it as the model. Raises BadRequestError for the first fault."""
    return validate(_parse(body), model)


@station("bodies")
def parse_liberally(body: bytes, model: type[ModelT], names: dict[str, str], notes: Notes) -> ModelT:
    """Parse a body that may have other servers' fields.

    names: see translate_fields(). notes: get what is left out, shown as text or understood.
    Raises BadRequestError for the first fault.
    """
    given = _parse(body, notes)
    if issubclass(model, AcceptsPeerFields):
        given, ignored = translate_fields(given, model.field_names(), names)
        for name in ignored:
            notes.left_out(name, is_peers=True)
    return validate_known(given, model, notes)


def _parse(body: bytes, notes: Notes | None = None) -> dict[str, Any]:
    """Parse a body. Raises BadRequestError unless it is a JSON object within the limits.

    notes: get a note if halves of characters were replaced; without notes they are a fault.
    """
    try:
        text = body.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as fault:
        raise BadRequestError(
            f"The request body is not valid UTF-8 (at byte {fault.start}).", code="invalid_utf8"
        ) from None
    check_values(body)
    try:
        given = _from_json(text, notes)
    except ValueError as fault:
        if "recursion limit" in str(fault):
            raise BadRequestError(
                "The JSON in the request body is nested too deeply. Flatten it.", code="json_too_deep"
            ) from None
        raise BadRequestError(f"The request body is not valid JSON: {fault}.", code="invalid_json") from None
    if not isinstance(given, dict):
        raise BadRequestError("The request body must be a JSON object.", code="invalid_type")
    return given


def _from_json(text: str, notes: Notes | None) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as fault:
        if notes is None or "hex escape" not in str(fault) or len(text) > MAX_MENDED:
            raise
        mended = _LONE.sub(r"\1\\ufffd", text)
        if notes.refuses or mended == text:
            raise
        notes.understood("lone surrogates")
        return from_json(mended, allow_inf_nan=False)


def check_values(body: bytes) -> None:
    """Refuse JSON with too many values before parsing it. Raises BadRequestError."""
    # The cheap count first: most bodies have few brackets and commas, even including those inside strings.
    if _has_many_values(body) and _has_many_values(_outside_strings(body)):
        raise BadRequestError(
            f"The JSON in the request body has more than {MAX_VALUES} values, or more than {MAX_CONTAINERS} "
            "arrays and objects. Send a smaller body.",
            code="json_too_large",
        )


def _has_many_values(text: bytes) -> bool:
    num_containers = text.count(b"[") + text.count(b"{")
    return num_containers > MAX_CONTAINERS or num_containers + text.count(b",") > MAX_VALUES


def _outside_strings(body: bytes) -> bytes:
    """Return the bytes of JSON text that are not inside strings."""
    text = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_inside = np.logical_xor.accumulate(text == ord('"'))
    return text[~is_inside].tobytes()
