"""Read, parse and validate request bodies, within limits."""

import codecs
import re
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from pydantic_core import from_json

from reprise.engine.interface.stations import station
from reprise.server.errors import BadRequestError, ContentTypeError, requested_name
from reprise.server.fair_queue import beside
from reprise.server.logs import is_logging_prompts, log_prompt, record_in
from reprise.server.threads import PROMPT_LOG
from reprise.server.validation.field_errors import validate, validate_known
from reprise.server.validation.fields import MAX_FIELDS, AcceptsPeerFields
from reprise.server.validation.large_json import FRAGMENT_BYTES, FragmentParser, Outline
from reprise.server.validation.notes import Notes
from reprise.server.validation.peer_fields import translate_fields

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_VALUES, MAX_CONTAINERS, MAX_MEMBERS = 1_000_000, 100_000, 100_000
"""Limits of a body: several times what a full context of token ids, or the longest conversation, needs.

Millions of values take gigabytes, and seconds in which the GIL keeps every other thread from running.
"""
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rf"((?<!\\)(?:\\\\)*)(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})")
"""Half of a character of JavaScript: agents leave one where they cut a text in the middle of an emoji."""


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """Read and validate a request's body. Its size has been checked by BodyLimit.

    Raises BadRequestError or ContentTypeError.
    """
    _check_content_type(request)
    body = await request.body()
    notes = Notes(request.app.state.service.settings.unknown_fields == "refuse")
    record = record_in(request.scope)
    parse = partial(parse_liberally, body, model, record.field_names, notes)
    parsed = await beside(request, parse)
    record.ignored += notes.entries()
    own = getattr(model, "names", {}).items()
    record.field_names |= {name: requested_name(path, record.field_names) for name, path in own}
    if is_logging_prompts():
        await PROMPT_LOG.run(copy_context().run, log_prompt, "asked", body)
    return parsed


def _check_content_type(request: Request) -> None:
    """Raise ContentTypeError unless the body is JSON, or nothing is said of it.

    That keeps web pages out: they can post other content types, and none, without a CORS preflight.
    """
    content_type = request.headers.get("content-type", "")
    media_type = content_type.split(";")[0].strip().lower()
    # Browsers say where each post comes from.
    is_untyped = not media_type and not {"origin", "sec-fetch-site"} & set(request.headers)
    if not is_untyped and media_type != "application/json" and not media_type.endswith("+json"):
        raise ContentTypeError(content_type)


def read_query(request: Request, model: type[ModelT]) -> ModelT:
    """Validate a request's query; leave out parameters that the model lacks. Raises BadRequestError."""
    notes = Notes(request.app.state.service.settings.unknown_fields == "refuse")
    # Lists are sent as name[]=... or as name=... more than once; none of them has an effect.
    given = {name.removesuffix("[]"): value for name, value in request.query_params.items()}
    query = validate_known(given, model, notes)
    record_in(request.scope).ignored += notes.entries()
    return query


@station("bodies")
def parse_body(body: bytes, model: type[ModelT]) -> ModelT:
    """Parse a body and validate it as the model. Raises BadRequestError for the first fault."""
    return validate(_parse(body), model)


@station("bodies")
def parse_liberally(body: bytes, model: type[ModelT], names: dict[str, str], notes: Notes) -> ModelT:
    """Parse a body that may have other servers' fields.

    names: see translate_fields(). notes: records parts that are left out, shown as text, or understood in
        another form.
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
        given = _load(body, notes)
    except UnicodeDecodeError as fault:
        raise BadRequestError(
            f"The request body is not valid UTF-8 (at byte {fault.start}).", code="invalid_utf8"
        ) from None
    except ValueError as fault:
        if "recursion limit" in str(fault):
            raise _too_deep() from None
        raise BadRequestError(f"The request body is not valid JSON: {fault}.", code="invalid_json") from None
    if not isinstance(given, dict):
        raise BadRequestError("The request body must be a JSON object.", code="invalid_type")
    if len(given) > MAX_FIELDS:
        raise BadRequestError(
            f"The request body has {len(given)} members; at most {MAX_FIELDS} are allowed.",
            code="invalid_value",
        )
    return given


def _load(body: bytes, notes: Notes | None) -> Any:
    parse_fragment = partial(_from_json, notes)
    body = body.removeprefix(codecs.BOM_UTF8)
    if len(body) <= FRAGMENT_BYTES:
        return parse_fragment(body.decode())
    outline = Outline(body)
    check_counts(outline)
    return FragmentParser(body, outline, parse_fragment).parse()


def _from_json(notes: Notes | None, text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as fault:
        if notes is None or "hex escape" not in str(fault):
            raise
        mended = _LONE.sub(r"\1\\ufffd", text)
        if notes.refuses or mended == text:
            raise
        notes.understood("lone surrogates")
        return from_json(mended, allow_inf_nan=False)


def check_values(text: bytes) -> None:
    """Refuse JSON, or a part of a body's JSON, that has too many values, before it is parsed.

    Raises BadRequestError.
    """
    # The cheap count first: most have few brackets and commas, even including those inside strings.
    num_containers = text.count(b"[") + text.count(b"{")
    has_many = num_containers > MAX_CONTAINERS or text.count(b":") > MAX_MEMBERS
    if has_many or num_containers + text.count(b",") > MAX_VALUES:
        check_counts(Outline(text))


def check_counts(outline: Outline) -> None:
    """Refuse JSON that has too many values or is nested too deeply, before it is parsed.

    Raises BadRequestError.
    """
    has_many = outline.num_containers > MAX_CONTAINERS or outline.num_members > MAX_MEMBERS
    if has_many or outline.num_values > MAX_VALUES:
        raise BadRequestError(
            f"The JSON in the request body has more than {MAX_VALUES} values, more than {MAX_CONTAINERS} "
            f"arrays and objects, or more than {MAX_MEMBERS} members of objects. Send a smaller body.",
            code="json_too_large",
        )
    if outline.is_deep:
        raise _too_deep()


def _too_deep() -> BadRequestError:
    message = "The JSON in the request body is nested too deeply. Flatten it."
    return BadRequestError(message, code="json_too_deep")
