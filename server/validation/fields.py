"""The base of all request models, and field types with limits that several of them share."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from reprise.server.validation.field_errors import field_error
from reprise.server.validation.notes import notes_in

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

    @model_validator(mode="before")
    @classmethod
    def null_means_default(cls, given: Any) -> Any:
        """Drop known fields that are null; unknown ones stay, so that they are refused."""
        if not isinstance(given, dict):
            return given
        # Before anything is done for each: an error for every member would take seconds.
        if len(given) > MAX_FIELDS:
            raise field_error("invalid_value", f"has {len(given)} members; at most {MAX_FIELDS} are allowed")
        names = cls.field_names()
        return {name: value for name, value in given.items() if value is not None or name not in names}

    @classmethod
    @cache
    def field_names(cls) -> frozenset[str]:
        """Return the names of the body's own fields."""
        return frozenset(field.alias or name for name, field in cls.model_fields.items())


class AcceptsPeerFields(RequestModel):
    """Base of bodies in which fields of other servers are understood or left out. See peer_fields.py."""


def no_effect(reason: str) -> Any:
    """Make the type of a field that cannot change the answer here; any value of it is valid.

    reason: why the field has no effect, for the docs.
    """
    return Annotated[Any, WithJsonSchema({}), Field(description=f"Accepted; {reason}")]


def unsupported(
    *no_ops: object,
    phrase: str = "is not supported; leave it out",
    description: str = "Left out.",
    is_needed: bool = False,
) -> Any:
    """Make the type of a field that the API has and this server does not support.

    no_ops: values that change nothing. phrase: the error message for any other value, after the field's name.
    description: the field's description in the docs. is_needed: whether the field would change the answer, so
    that other values are refused; else they are left out.
    """

    def refuse(given: object) -> None:
        if not any(given == no_op and type(given) is type(no_op) for no_op in no_ops):
            raise field_error("unsupported_parameter", phrase, leaves_out=not is_needed)

    if not is_needed:
        return Annotated[Any, BeforeValidator(refuse), WithJsonSchema({}), Field(description=description)]
    return Annotated[
        Any,
        BeforeValidator(refuse),
        WithJsonSchema({"enum": [None, *no_ops]}),
        Field(description=description, json_schema_extra={REFUSED: phrase}),
    ]


def _stops(given: object, info: ValidationInfo) -> tuple[str, ...]:
    if not isinstance(given, str | list):
        raise field_error("invalid_type", "must be a string or an array of strings")
    stops = [given] if isinstance(given, str) else given
    if len(stops) > MAX_STOPS:
        raise field_error("invalid_value", f"has {len(stops)} entries; at most {MAX_STOPS} are allowed")
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
    if len(given) > MAX_BIASES:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_BIASES} are allowed")
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
    """Return token ids as integers. at: path from the field to the array. Raises PydanticCustomError."""
    ids = [as_integer(token, info) for token in given]
    for index, token in enumerate(ids):
        if type(token) is not int:
            raise field_error("invalid_type", "must be a token id, which is an integer", f"{at}[{index}]")
    return cast("list[int]", ids)


def _token_ids(given: object, info: ValidationInfo) -> tuple[int, ...]:
    given = single(as_integer(given, info), int, info)
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of token ids")
    if len(given) > MAX_BIASES:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_BIASES} are allowed")
    return tuple(dict.fromkeys(integers(given, info)))


def neutral(*names: str, values: tuple[Any, ...] = (None,)) -> dict[str, Any]:
    """Return the JSON schema of a body in which each named field is absent or has one of the values."""
    return {"properties": {name: {"enum": list(values)} for name in names}}


TokenId = Annotated[int, Field(ge=0, le=INT32_MAX, json_schema_extra={IS_ID: True})]
_Stop = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
Stops = Annotated[
    tuple[str, ...],
    BeforeValidator(
        _stops, json_schema_input_type=_Stop | Annotated[list[_Stop | None], Field(max_length=MAX_STOPS)]
    ),
]
LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    BeforeValidator(_logit_bias, json_schema_input_type=dict[str, _Bias]),
    Field(
        json_schema_extra={
            "maxProperties": MAX_BIASES,
            "propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$", IS_ID: True},
        }
    ),
]
TokenIds = Annotated[
    tuple[int, ...],
    BeforeValidator(
        _token_ids, json_schema_input_type=Annotated[list[TokenId], Field(max_length=MAX_BIASES)]
    ),
]
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Limit = Annotated[int, Field(ge=0, le=INT32_MAX)]
Temperature = Annotated[
    float,
    Field(
        ge=0,
        le=2,
        description="Sampling temperature. 0: always the most likely token. Higher is more random.",
    ),
]
TopP = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Sample only from the most likely tokens whose probabilities add up to this. 1: no "
        "limit.",
    ),
]
Penalty = Annotated[float, Field(ge=-2, le=2)]
