"""From the bytes of a body to a validated request, or to an error that says what is wrong where."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from server.errors import BadRequestError, ContentTypeError, shortened
from server.logs import log_prompt, logs_prompts

ModelT = TypeVar("ModelT", bound=BaseModel)

SMALL_BYTES = 32 * 2**10
"""A body up to here is read on the event loop; others would hold it up for longer than a thread costs."""
MAX_VALUES, MAX_CONTAINERS = 1_000_000, 100_000
"""Of a body: several times the token ids that fill a context, and the arrays and objects of the largest chat.

Millions take seconds, in which no other thread runs, and gigabytes.
"""
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="body")

_SHOULD = re.compile(r"^[A-Z]\w+ should (be|have|match)")
"""How pydantic's messages begin."""
_JSON_TYPES = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
_JSON_TYPES[type(None)] = "null"


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """Read and validate a request's body; its size has been limited before.

    Raises BadRequestError or ContentTypeError.
    """
    # A page can post to a local server unasked, with almost any content type and with none.
    content_type = request.headers.get("content-type", "")
    media_type = content_type.split(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ContentTypeError(content_type)
    body = await request.body()
    if len(body) <= SMALL_BYTES:
        parsed = parse_body(body, model)
    else:
        parsed = await asyncio.get_running_loop().run_in_executor(_THREAD, parse_body, body, model)
    if logs_prompts():
        log_prompt("asked", body.decode())
    return parsed


def parse_body(body: bytes, model: type[ModelT]) -> ModelT:
    """Turn bytes into the model. Raises BadRequestError for the first thing that is wrong."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadRequestError(
            f"The body is not valid UTF-8 at byte {fault.start}.", code="invalid_utf8"
        ) from None
    check_values(body)
    try:
        given = from_json(text, allow_inf_nan=False)
    except ValueError as fault:
        if "recursion limit" in str(fault):
            raise BadRequestError(
                "The JSON of the body is nested too deeply.", code="json_too_deep"
            ) from None
        raise BadRequestError(f"The body is not valid JSON: {fault}.", code="invalid_json") from None
    if not isinstance(given, dict):
        raise BadRequestError("The body must be a JSON object.", code="invalid_type")
    return validated(given, model)


def check_values(body: bytes) -> None:
    """Refuse JSON of very many values unread. Raises BadRequestError."""
    # Most bodies have too few of the characters that come before a value, wherever these stand.
    if _has_many_values(body) and _has_many_values(_outside_strings(body)):
        raise BadRequestError(
            f"The JSON of the body has more than {MAX_VALUES} values, or more than {MAX_CONTAINERS} arrays "
            "and objects. Send less.",
            code="json_too_large",
        )


def _has_many_values(text: bytes) -> bool:
    num_containers = text.count(b"[") + text.count(b"{")
    return num_containers > MAX_CONTAINERS or num_containers + text.count(b",") > MAX_VALUES


def _outside_strings(body: bytes) -> bytes:
    text = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_inside = np.logical_xor.accumulate(text == ord('"'))
    return text[~is_inside].tobytes()


def validated(given: dict[str, Any], model: type[ModelT]) -> ModelT:
    """Make the model of what was parsed. Raises BadRequestError for the first thing that is wrong."""
    try:
        return model.model_validate(given)
    except ValidationError as fault:
        raise _bad_request(_first_error(fault)) from None


def _first_error(fault: ValidationError) -> ErrorDetails:
    """The first error; if a validator made a model of its own (see variants.one_of()), the model's first."""
    error = fault.errors(include_url=False)[0]
    inner = error.get("ctx", {}).get("error")
    if not isinstance(inner, ValidationError):
        return error
    deeper = _first_error(inner)
    return {**deeper, "loc": (*error["loc"], *deeper["loc"])}


def _bad_request(error: ErrorDetails) -> BadRequestError:
    """OpenAI's error for one of pydantic's."""
    context = error.get("ctx", {})
    param = shortened(_path(error["loc"], context.get("at", "")), 200)
    kind = error["type"]
    if "phrase" in context:
        return BadRequestError(f"'{param}' {context['phrase']}.", param=param, code=kind)
    if kind == "extra_forbidden":
        return BadRequestError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
        return BadRequestError(message, param=param, code="missing_required_parameter")
    wanted = _SHOULD.sub(r"must \1", error["msg"]).replace(" after validation", "")
    if kind.endswith("_type"):
        message = f"'{param}' {wanted}, not {_json_type(error['input'])}."
        return BadRequestError(message, param=param, code="invalid_type")
    return BadRequestError(f"'{param}' {wanted}.", param=param, code="invalid_value")


def _path(location: tuple[int | str, ...], at: str) -> str:
    """The path to a field as OpenAI writes it: messages[0].content."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return (path + at).removeprefix(".")


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "an object")
