"""Declare and validate the fields of request bodies; word the errors."""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from inspect import getsource
from itertools import pairwise
from math import isinf
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, from_json

from reprise.server.errors import BadRequestError, bad_field, shortened

MAX_NOTES = 1000
"""Maximum notes of a request that are kept."""


@dataclass(slots=True)
class Notes:
    """The parts of a request without effect, or in another form than its API's.

    refuses: whether each such part is an error instead (`--unknown-fields refuse`).
    silent: known keys that need no note. api: the API whose own forms need none; "": any.
    paths: path of a part -> what happened to it; "" if it was left out.
    """

    refuses: bool = False
    silent: frozenset[str] = frozenset()
    api: Literal["", "chats", "messages", "responses", "ollama"] = ""
    paths: dict[str, str] = field(default_factory=dict)

    def left_out(self, path: str, *, is_peers: bool = False) -> None:
        """Note a field without effect. is_peers: whether it is another server's, which is never an error."""
        self._note(path, "", "" if is_peers else "Unknown parameter: '{}'.", "unknown_parameter")

    def as_text(self, path: str) -> None:
        """Note a part that the model can only be shown as text."""
        message = "'{}' is not supported: the model is shown text; send text."
        self._note(path, "as text", message, "unsupported_content_part")

    def understood(self, path: str, what: str = "is not in the form that this API has") -> None:
        """Note a value that is not in this API's form, but whose meaning is certain.

        what: the error after the field's name, if such values are refused.
        """
        self._note(path, "understood", f"'{{}}' {what}.", "invalid_value")

    def _note(self, path: str, became: str, message: str, code: str) -> None:
        path = shortened(path, 200)
        if self.refuses and message:
            raise BadRequestError(message.replace("{}", path), param=path, code=code)
        if len(self.paths) < MAX_NOTES:
            self.paths.setdefault(path, became)

    def entries(self) -> list[str]:
        """Return the paths for header and log: `a`, or `a (as text)`, or `a (understood)`."""
        return [f"{path} ({became})" if became else path for path, became in self.paths.items()]


def notes_in(context: object) -> Notes:
    """Return the Notes in a validation's context, or new ones."""
    return context if isinstance(context, Notes) else Notes()


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
JSON_TYPES = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
}
"""How messages call the types of JSON values, beside objects."""
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
    """Make a validation error: the field's name followed by the phrase.

    at: path from the validated field to the part at fault, such as [1].type.
    leaves_out: whether the part may be left out instead, since the answer is the same without it.
    """
    return PydanticCustomError(code, "{phrase}", {"phrase": phrase, "at": at, "leaves_out": leaves_out})


def check_num(given: Sized, most: int, what: str = "entries", at: str = "") -> None:
    """Refuse more than `most` parts. what: their name in the error. at: see field_error()."""
    if len(given) > most:
        raise field_error("invalid_value", f"has {len(given)} {what}; at most {most} are allowed", at)


def validate(given: dict[str, Any], model: type[ModelT], notes: Notes | None = None) -> ModelT:
    """Validate parsed JSON as the model, after repairing mistakes that leave its meaning clear.

    Changes `given`. notes: records the repairs. Without notes, mistakes are errors, except other servers'
    fields within objects. Raises BadRequestError.
    """
    notes = notes or Notes(refuses=True)
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(given, context=notes)
        except ValidationError as fault:
            errors = list(_inner_errors(fault))
        num_mended = sum(_mend(given, error, model, notes) for error in errors)
        if not num_mended:
            break
    raise _bad_request(errors[0])


def _mend(given: dict[str, Any], error: ErrorDetails, model: type[BaseModel], notes: Notes) -> bool:
    """Leave out a value that cannot change the answer, or convert it to the form that is meant.

    Returns whether anything changed. With notes that refuse, only other servers' fields are left out.
    """
    location, context, kind = error["loc"], error.get("ctx", {}), error["type"]
    name = str(location[-1]) if location else ""
    is_peers = kind == "extra_forbidden" and name in INSIDE
    if notes.refuses and not is_peers:
        return False
    # Other servers have -1 for no limit.
    is_unlimited = kind == "greater_than_equal" and error["input"] == -1 and name in UNLIMITED
    steps = _STEP.findall(context.get("at", ""))
    where = (*location, *(int(index) if index else step for step, index in steps))
    meant = _meant(error)
    if meant is not MISSING:
        try:
            _holder(given, location)[location[-1]] = meant
        except (KeyError, IndexError, TypeError):
            return False
        notes.understood(_path(where, ""))
        return True
    if not (kind == "extra_forbidden" or context.get("leaves_out") or is_unlimited):
        # A body can do without some fields around a fault.
        names: frozenset[str] = getattr(model, "droppable", frozenset())
        around = (location[:end] for end in range(1, len(location) + 1))
        where = next((place for place in around if _path(place, "") in names), ())
    holder = _holder(given, where) if where else None
    if not isinstance(holder, dict) or holder.pop(where[-1], MISSING) is MISSING:
        return False
    if is_unlimited:
        notes.understood(_path(where, ""))
    else:
        notes.left_out(_path(where, ""), is_peers=is_peers)
    return True


def _meant(error: ErrorDetails) -> Any:
    """Convert a value of the wrong type to what it means; MISSING if that is not certain."""
    given, kind = error["input"], error["type"]
    if kind == "int_type" and isinstance(given, float) and given.is_integer():
        return int(given)
    if kind in ("list_type", "tuple_type") and not isinstance(given, list | dict | None):
        return [given]
    if kind in ("dict_type", "model_type") and isinstance(given, str) and len(given) <= MAX_PARSED:
        with suppress(ValueError):
            parsed = parse_finite(given)
            return parsed if isinstance(parsed, dict) else MISSING
    return MISSING


_MAYBE_INFINITE = re.compile(r"[eE]\+?\d{3}|\d{200}")


def parse_finite(text: str, **options: Any) -> Any:
    """Parse JSON. Raises ValueError, also for a number beyond a float's range: JSON has no infinity.

    options: see from_json().
    """
    value = from_json(text, allow_inf_nan=False, **options)
    # Most texts have nothing that could be one, and some have a million tokens.
    waiting = [value] if _MAYBE_INFINITE.search(text) else []
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, float) and isinf(one):
            raise ValueError("a number is too large")
    return value


def _holder(given: Any, location: Sequence[int | str]) -> Any:
    for part in location[:-1]:
        try:
            given = given[part]
        except (KeyError, IndexError, TypeError):
            return None
    return given


def _inner_errors(fault: ValidationError) -> Iterator[ErrorDetails]:
    """Yield the errors; for a model of tagged_union(), that model's errors."""
    for error in fault.errors(include_url=False):
        inner = error.get("ctx", {}).get("error")
        if isinstance(inner, ValidationError):
            for one in _inner_errors(inner):
                yield {**one, "loc": (*error["loc"], *one["loc"])}
        else:
            yield error


def _bad_request(error: ErrorDetails) -> BadRequestError:
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
        expected, actual = _EXPECTED[kind], JSON_TYPES.get(type(given), "an object")
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


def tagged_union(kinds: Mapping[str, type[BaseModel]]) -> Callable[[object], Any]:
    """Return a validator for objects whose `type` selects one of the models.

    Its errors have the request's own paths. Those of Pydantic's unions do not, and list every model.
    """

    def choose(given: object) -> Any:
        if isinstance(given, tuple(kinds.values())):
            return given
        if not isinstance(given, dict):
            raise field_error("invalid_type", "must be an object")
        kind = given.get("type")
        if kind is None:
            raise field_error("missing_required_parameter", "is missing", ".type")
        if not isinstance(kind, str):
            raise field_error("invalid_type", "must be a string", ".type")
        if kind in kinds:
            return kinds[kind].model_validate(given)
        known = ", ".join(f"'{name}'" for name in kinds)
        raise field_error("invalid_value", f"is '{shortened(kind)}'; this server supports {known}", ".type")

    return choose


MAX_FIELDS = 1000
"""Maximum members of a body, and of each object in it whose members are fields."""
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1000
MAX_BIASES = 16_384
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
IS_ID = "x-token-id"
"""The key in a JSON schema of a number, or of text in digits, that is the id of one of the model's tokens."""
REFUSED = "x-refused"
"""The key in a refused field's JSON schema that holds the phrase of its error message."""
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


Rules = Sequence[dict[str, Any]]


@cache
def _descriptions(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of a module's fields, by class and field.

    Pydantic's use_attribute_docstrings takes half a second for all bodies.
    """
    found = {}
    try:
        source = getsource(sys.modules[module])
    except OSError:
        # Only the byte code is here.
        return {}
    for made in (one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)):
        for pair in pairwise(made.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[made.name, name] = " ".join(text.split())
    return found


class RequestModel(BaseModel):
    """Base of all objects in requests: no unknown fields, no type conversions, and null means the default."""

    droppable: ClassVar[frozenset[str]] = frozenset()
    """Paths of fields without which the answer is the same, or nearly: a wrong value is left out."""
    takes_anything: ClassVar[tuple[str, ...]] = ()
    """Fields of which whatever has no meaning is shown as text."""
    names: ClassVar[Mapping[str, str]] = {}
    """What a body calls fields of the chat request that is made of it, by their names there, for errors."""
    rules: ClassVar[Rules] = ()
    """JSON schemas that a body satisfies besides that of its fields, for OpenAPI; subclasses add theirs."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        names = {field.alias: name for name, field in cls.model_fields.items()}
        for key, described in handler.resolve_ref_schema(schema).get("properties", {}).items():
            if text := cls._text_below(names.get(key, key)):
                described.setdefault("description", text)
        return schema

    @classmethod
    def _text_below(cls, name: str) -> str:
        kinds = (kind for kind in cls.__mro__ if issubclass(kind, RequestModel))
        found = (_descriptions(kind.__module__).get((kind.__name__, name), "") for kind in kinds)
        return next(filter(None, found), "")

    @classmethod
    def description_of(cls, name: str) -> str:
        """Return a field's description, from its Field or from the docstring below it."""
        return cls.model_fields[name].description or cls._text_below(name)

    @model_validator(mode="before")
    @classmethod
    def null_means_default(cls, given: Any) -> Any:
        """Drop known fields that are null; unknown ones stay, so that they are refused."""
        if not isinstance(given, dict):
            return given
        # Before anything is done for each: an error for every member would take seconds.
        check_num(given, MAX_FIELDS, "members")
        names = cls.field_names()
        return {name: value for name, value in given.items() if value is not None or name not in names}

    @classmethod
    @cache
    def field_names(cls) -> frozenset[str]:
        """Return the names of the body's own fields."""
        return frozenset(field.alias or name for name, field in cls.model_fields.items())


class AcceptsPeerFields(RequestModel):
    """Base of bodies in which other servers' fields are translated or left out. See peer_fields.py."""


def read_by(read: Any, given: Any) -> BeforeValidator:
    """Annotate a field that a function reads. read: the function. given: the type for the schema."""
    return BeforeValidator(read, json_schema_input_type=given)


def no_effect(reason: str) -> Any:
    """Make the type of a field without effect here, for this reason. Any value is valid."""
    return Annotated[Any, WithJsonSchema({}), Field(description=f"Accepted; {reason}")]


def unsupported(
    *no_ops: object,
    phrase: str = "is not supported; leave it out",
    description: str = "Left out.",
    is_needed: bool = False,
) -> Any:
    """Make the type of a field that the API has and this server does not support.

    no_ops: values that change nothing. phrase: the error for other values, left out unless is_needed.
    """

    def refuse(given: object) -> None:
        if not any(given == no_op and type(given) is type(no_op) for no_op in no_ops):
            raise field_error("unsupported_parameter", phrase, leaves_out=not is_needed)

    schema = WithJsonSchema({"enum": [None, *no_ops]} if is_needed else {})
    described = Field(description=description, json_schema_extra={REFUSED: phrase} if is_needed else None)
    return Annotated[Any, BeforeValidator(refuse), schema, described]


def _stops(given: object, info: ValidationInfo) -> tuple[str, ...]:
    if not isinstance(given, str | list):
        raise field_error("invalid_type", "must be a string or an array of strings")
    stops = [given] if isinstance(given, str) else given
    check_num(stops, MAX_STOPS)
    kept = []
    for index, stop in enumerate(stops):
        at = "" if isinstance(given, str) else f"[{index}]"
        if stop in ("", None):
            notes_in(info.context).understood(f"{info.field_name}{at}", "is empty, which ends no answer")
            continue
        if not isinstance(stop, str):
            raise field_error("invalid_type", "must be a string", at)
        if len(stop) > MAX_STOP_CHARACTERS:
            phrase = f"has {len(stop)} characters; a stop string has at most {MAX_STOP_CHARACTERS}"
            raise field_error("invalid_value", phrase, at)
        kept.append(stop)
    return tuple(kept)


def _logit_bias(given: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be an object that maps token ids to numbers")
    check_num(given, MAX_BIASES)
    given = {key: bias for key, bias in given.items() if type(bias) is not int or bias != 0}
    for key, bias in given.items():
        if not _TOKEN_ID.fullmatch(key):
            raise field_error("invalid_value", "must be a token id in decimal digits", f".{key}")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise field_error("invalid_type", "must be a number", f".{key}")
        if not -100 <= bias <= 100:
            raise field_error("invalid_value", "must be between -100 and 100", f".{key}")
    return tuple((int(key), float(bias)) for key, bias in given.items())


def single(given: object, kind: type, info: ValidationInfo) -> object:
    """Put a lone value of type kind into an array; return other values unchanged."""
    if type(given) is not kind or notes_in(info.context).refuses:
        return given
    notes_in(info.context).understood(str(info.field_name), "must be an array")
    return [given]


def as_integer(given: object, info: ValidationInfo) -> object:
    """Convert a number such as 40.0 to an integer; return other values unchanged."""
    notes = notes_in(info.context)
    if not isinstance(given, float) or not given.is_integer() or notes.refuses:
        return given
    notes.understood(str(info.field_name), "must be an integer")
    return int(given)


def integers(given: list[object], info: ValidationInfo, at: str = "") -> list[int]:
    """Return token ids as integers. at: path from the field to the array."""
    ids = [as_integer(token, info) for token in given]
    for index, token in enumerate(ids):
        if type(token) is not int:
            raise field_error("invalid_type", "must be a token id, which is an integer", f"{at}[{index}]")
    return cast("list[int]", ids)


def _token_ids(given: object, info: ValidationInfo) -> tuple[int, ...]:
    given = single(as_integer(given, info), int, info)
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of token ids")
    check_num(given, MAX_BIASES)
    return tuple(dict.fromkeys(integers(given, info)))


def neutral(*names: str, values: tuple[Any, ...] = (None,)) -> dict[str, Any]:
    """Return the JSON schema of a body in which each named field is absent or has one of the values."""
    return {"properties": {name: {"enum": list(values)} for name in names}}


TokenId = Annotated[int, Field(ge=0, le=INT32_MAX, json_schema_extra={IS_ID: True})]
_Stop = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Stops = _Stop | Annotated[list[_Stop | None], Field(max_length=MAX_STOPS)]
Stops = Annotated[tuple[str, ...], read_by(_stops, _Stops)]
_OF_BIASES = {
    "maxProperties": MAX_BIASES,
    "propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$", IS_ID: True},
}
LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    read_by(_logit_bias, dict[str, _Bias]),
    Field(json_schema_extra=cast("Any", _OF_BIASES)),
]
TokenIds = Annotated[
    tuple[int, ...], read_by(_token_ids, Annotated[list[TokenId], Field(max_length=MAX_BIASES)])
]
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Limit = Annotated[int, Field(ge=0, le=INT32_MAX)]
_HEAT = "Sampling temperature. 0: always the most likely token. Higher is more random."
Temperature = Annotated[float, Field(ge=0, le=2, description=_HEAT)]
_MASS = "Sample only from the most likely tokens whose probabilities add up to this. 1: no limit."
TopLogprobs = Annotated[int, Field(ge=0, le=20)]
TopP = Annotated[float, Field(ge=0, le=1, description=_MASS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
