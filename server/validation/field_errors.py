"""Validate parsed JSON, and turn the first validation error into OpenAI's error object."""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from server.errors import BadRequestError, shortened

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
"""Maximum validations of one body. Each leaves out all unknown fields that the one before found."""
MISSING = object()
_MAX_SHOWN = 10**20
"""Larger numbers are left out of messages."""


def field_error(code: str, phrase: str, at: str = "") -> PydanticCustomError:
    """Make a validation error whose message is the field's name followed by the phrase: 'stop' <phrase>.

    at: path from the validated field to the part at fault, such as [1].type.
    """
    return PydanticCustomError(code, "{phrase}", {"phrase": phrase, "at": at})


def validate(given: dict[str, Any], model: type[ModelT]) -> ModelT:
    """Validate parsed JSON as the model. Raises BadRequestError for the first fault."""
    try:
        return model.model_validate(given)
    except ValidationError as fault:
        raise _bad_request(_first_error(fault)) from None


def validate_known(
    given: dict[str, Any], model: type[ModelT], is_left_out: Callable[[str], bool]
) -> tuple[ModelT, list[str]]:
    """Validate parsed JSON without fields that the model does not know; return the paths of those.

    is_left_out: whether an unknown field of this name may be left out.
    Raises BadRequestError for the first other fault. Changes what it is given.
    """
    dropped: list[str] = []
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(given), dropped
        except ValidationError as fault:
            errors = [deeper for error in _errors(fault) for deeper in _inner_errors(error)]
        unknown = [one["loc"] for one in errors if one["type"] == "extra_forbidden"]
        left_out = [path for path in unknown if is_left_out(str(path[-1])) and _drop(given, path)]
        if not left_out:
            break
        dropped += [shortened(_path(path, ""), 200) for path in left_out]
    raise _bad_request(errors[0])


def _drop(given: Any, location: tuple[int | str, ...]) -> bool:
    """Remove a field from parsed JSON; return whether it was there."""
    for part in location[:-1]:
        try:
            given = given[part]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(given, dict) and given.pop(location[-1], MISSING) is not MISSING


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
    """Turn pydantic's error into OpenAI's."""
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
    given = error["input"]
    if kind in _EXPECTED:
        expected, actual = _EXPECTED[kind], _JSON_TYPES.get(type(given), "an object")
        # The only integer that is not a number for pydantic is one that no float can hold.
        is_too_large = expected == "a number" and actual == "an integer"
        problem = "is too large" if is_too_large else f"must be {expected}, not {actual}"
        return BadRequestError(f"'{param}' {problem}.", param=param, code="invalid_type")
    requirement = _SHOULD.sub(r"must \1", error["msg"]).replace(" after validation", "")
    if kind in ("greater_than_equal", "less_than_equal"):
        requirement = requirement.replace("greater than or equal to", "at least")
        requirement = requirement.replace("less than or equal to", "at most")
        if not isinstance(given, int) or abs(given) < _MAX_SHOWN:
            requirement += f", not {given}"
    return BadRequestError(f"'{param}' {requirement}.", param=param, code="invalid_value")


def _path(location: tuple[int | str, ...], at: str) -> str:
    """Return the path to a field as OpenAI writes it: messages[0].content."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return (path + at).removeprefix(".")
