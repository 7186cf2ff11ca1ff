"""Validate parsed JSON, mend faults whose meaning is clear, and report the first other one as OpenAI does."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from reprise.server.errors import BadRequestError, bad_field, shortened
from reprise.server.validation.notes import Notes

ModelT = TypeVar("ModelT", bound=BaseModel)

_SHOULD = re.compile(r"^[A-Z]\w+ should (be|have|match)")
"""The beginning of pydantic's messages, which "must be ..." replaces."""
_EXPECTED = {
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "list_type": "an array",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}
"""The expected JSON types, by pydantic's error types: its messages have Python's names of types."""
_JSON_TYPES = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
}
MAX_ROUNDS = 16
"""Maximum validations of one body. Each mends all that the one before found."""
INSIDE = (
    *("cache_control", "continuous_usage_stats", "extra_content", "index", "provider_specific_fields"),
    *("reasoning_details", "thinking", "thinking_blocks", "verbosity"),
)
"""Fields inside messages, tools and options that are left out: OpenRouter's, vLLM's, Ollama's and LiteLLM's.

index: clients that put a call together from a stream send it back with its place there.
"""
UNLIMITED = frozenset(
    {"max_tokens", "max_completion_tokens", "max_output_tokens", "thinking_budget_tokens", "budget_tokens"}
)
"""Limits whose -1 means none."""
MAX_PARSED = 2**20
"""Maximum characters of a string that is parsed as JSON where an object is meant."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
MISSING = object()
_MAX_SHOWN = 10**20
"""Larger numbers are left out of messages."""


def field_error(code: str, phrase: str, at: str = "", *, leaves_out: bool = False) -> PydanticCustomError:
    """Make a validation error whose message is the field's name followed by the phrase: 'stop' <phrase>.

    at: path from the validated field to the part at fault, such as [1].type.
    leaves_out: whether the part may be left out instead, as the answer is the same without it.
    """
    return PydanticCustomError(code, "{phrase}", {"phrase": phrase, "at": at, "leaves_out": leaves_out})


def validate(given: dict[str, Any], model: type[ModelT]) -> ModelT:
    """Validate parsed JSON as the model. Raises BadRequestError for the first fault."""
    try:
        return model.model_validate(given, context=Notes(refuses=True))
    except ValidationError as fault:
        raise _bad_request(_first_error(fault)) from None


def validate_known(given: dict[str, Any], model: type[ModelT], notes: Notes) -> ModelT:
    """Validate parsed JSON as the model, after mending faults that leave its meaning clear.

    Changes given. notes: records the mended faults. Raises BadRequestError for the first other fault.
    """
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(given, context=notes)
        except ValidationError as fault:
            errors = [deeper for error in _errors(fault) for deeper in _inner_errors(error)]
        num_mended = sum(_mend(given, error, model, notes) for error in errors)
        if not num_mended:
            break
    raise _bad_request(errors[0])


def _mend(given: dict[str, Any], error: ErrorDetails, model: type[BaseModel], notes: Notes) -> bool:
    """Leave out a value that cannot change the answer, or write it in the form that is meant.

    Returns whether anything changed. With notes that refuse, only other servers' fields are left out.
    """
    location, context = error["loc"], error.get("ctx", {})
    is_peers = error["type"] == "extra_forbidden" and str(location[-1]) in INSIDE
    if notes.refuses and not is_peers:
        return False
    where = (*location, *_steps(context.get("at", "")))
    meant, is_unlimited = _meant(error), _is_unlimited(error)
    has_effect = not (error["type"] == "extra_forbidden" or context.get("leaves_out") or is_unlimited)
    if meant is MISSING and has_effect:
        where = _droppable(location, model)
    mended = _drop(given, where) if meant is MISSING else _replace(given, location, meant)
    if mended and meant is MISSING and not is_unlimited:
        notes.left_out(_path(where, ""), is_peers=is_peers)
    elif mended:
        notes.understood(_path(where, ""))
    return mended


def _meant(error: ErrorDetails) -> Any:
    """Return the value that is meant by one of another type; MISSING if that is not certain."""
    given, kind = error["input"], error["type"]
    if kind == "int_type" and isinstance(given, float) and given.is_integer():
        return int(given)
    if kind in ("list_type", "tuple_type") and not isinstance(given, list | dict | None):
        return [given]
    if kind in ("dict_type", "model_type") and isinstance(given, str) and len(given) <= MAX_PARSED:
        with suppress(ValueError):
            parsed = from_json(given, allow_inf_nan=False)
            return parsed if isinstance(parsed, dict) else MISSING
    return MISSING


def _droppable(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[int | str, ...]:
    """Return the location of the field around a fault that a body can do without; () if there is none."""
    names: frozenset[str] = getattr(model, "droppable", frozenset())
    ends = range(1, len(location) + 1)
    return next((location[:end] for end in ends if _path(location[:end], "") in names), ())


def _is_unlimited(error: ErrorDetails) -> bool:
    """Return whether a number of tokens is -1, with which other servers mean that there is no limit."""
    is_limit = bool(error["loc"]) and str(error["loc"][-1]) in UNLIMITED
    return error["type"] == "greater_than_equal" and error["input"] == -1 and is_limit


def _steps(at: str) -> Iterator[int | str]:
    """Yield the parts of a path such as [1].type."""
    for name, index in _STEP.findall(at):
        yield int(index) if index else name


def _parent(given: Any, location: Sequence[int | str]) -> Any:
    """Return the object or array that holds a field, in parsed JSON; None if it is not there."""
    for part in location[:-1]:
        try:
            given = given[part]
        except (KeyError, IndexError, TypeError):
            return None
    return given


def _drop(given: Any, location: Sequence[int | str]) -> bool:
    """Remove a field from parsed JSON; return whether it was there."""
    parent = _parent(given, location) if location else None
    return isinstance(parent, dict) and parent.pop(location[-1], MISSING) is not MISSING


def _replace(given: Any, location: Sequence[int | str], value: object) -> bool:
    """Replace a value in parsed JSON; return whether there is one."""
    parent = _parent(given, location)
    try:
        parent[location[-1]] = value
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _errors(fault: ValidationError) -> list[ErrorDetails]:
    return fault.errors(include_url=False)


def _inner_errors(error: ErrorDetails) -> Iterator[ErrorDetails]:
    """Yield an error, or for a model that tagged_union() built that model's errors."""
    inner = error.get("ctx", {}).get("error")
    if not isinstance(inner, ValidationError):
        yield error
        return
    for deeper in _errors(inner):
        for one in _inner_errors(deeper):
            yield {**one, "loc": (*error["loc"], *one["loc"])}


def _first_error(fault: ValidationError) -> ErrorDetails:
    """Return the first error. For a model that tagged_union() built, return that model's first error."""
    return next(_inner_errors(_errors(fault)[0]))


def _bad_request(error: ErrorDetails) -> BadRequestError:
    """Convert pydantic's error into OpenAI's."""
    context = error.get("ctx", {})
    param = shortened(_path(error["loc"], context.get("at", "")), 200)
    kind = error["type"]
    if "phrase" in context:
        return bad_field(param, context["phrase"], kind)
    if kind == "extra_forbidden":
        return BadRequestError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
        return BadRequestError(message, param=param, code="missing_required_parameter")
    given = error["input"]
    if kind in _EXPECTED:
        expected, actual = _EXPECTED[kind], _JSON_TYPES.get(type(given), "an object")
        # The only integer that is not a number for pydantic is one that no float can hold.
        is_too_large = expected == "a number" and actual == "an integer"
        problem = "is too large" if is_too_large else f"must be {expected}, not {actual}"
        return bad_field(param, problem, "invalid_type")
    requirement = _SHOULD.sub(r"must \1", error["msg"]).replace(" after validation", "")
    if kind in ("greater_than_equal", "less_than_equal"):
        requirement = requirement.replace("greater than or equal to", "at least")
        requirement = requirement.replace("less than or equal to", "at most")
        if not isinstance(given, int) or abs(given) < _MAX_SHOWN:
            requirement += f", not {given}"
    return bad_field(param, requirement)


def _path(location: tuple[int | str, ...], at: str) -> str:
    """Return the path to a field as OpenAI writes it: messages[0].content."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return (path + at).removeprefix(".")
