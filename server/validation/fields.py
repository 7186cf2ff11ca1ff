"""The base of all request models, and field types with limits that several of them share."""

import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from server.errors import shortened
from server.validation.field_errors import field_error

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_BIASES = 16_384
MAX_PAIRS, MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 16, 64, 512
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
REFUSED = "x-refused"
"""The key in a refused field's JSON schema that holds the phrase of its error message."""
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class RequestModel(BaseModel):
    """Base of all objects in requests: no unknown fields, no type conversions, and null means the default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def null_means_default(cls, given: Any) -> Any:
        """Drop known fields that are null; unknown ones stay, so that they are refused."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or not cls._has(name)}

    @classmethod
    def _has(cls, name: str) -> bool:
        return any(name == (field.alias or attribute) for attribute, field in cls.model_fields.items())


class AcceptsPeerFields(RequestModel):
    """Base of bodies in which fields of other servers are understood or left out. See peer_fields.py."""

    @classmethod
    def field_names(cls) -> frozenset[str]:
        """Return the names of the body's own fields."""
        return frozenset(field.alias or name for name, field in cls.model_fields.items())


def unsupported(
    *no_ops: object,
    phrase: str = "is not supported yet; leave it out",
    description: str = "Not supported yet.",
) -> Any:
    """Make the type of a field that the API has and this server does not support.

    no_ops: values that are accepted, since they change nothing. phrase: the error message for any other
    value, after the field's name. description: the field's description in the docs.
    """
    return _refused(phrase, no_ops, description)


def superseded(phrase: str, *no_ops: object) -> Any:
    """Make the type of a field that OpenAI has replaced by another one. Only the no_ops are accepted.

    phrase: the error message after the field's name; it says what to send instead.
    """
    return _refused(phrase, no_ops, "Deprecated.")


def _refused(phrase: str, no_ops: tuple[object, ...], description: str) -> Any:
    def refuse(given: object) -> None:
        if not any(given == no_op and type(given) is type(no_op) for no_op in no_ops):
            raise field_error("unsupported_parameter", phrase)

    return Annotated[
        Any,
        BeforeValidator(refuse),
        WithJsonSchema({"enum": [None, *no_ops]}),
        Field(description=description, json_schema_extra={REFUSED: phrase}),
    ]


def _stops(given: object) -> tuple[str, ...]:
    if not isinstance(given, str | list):
        raise field_error("invalid_type", "must be a string or an array of strings")
    stops = [given] if isinstance(given, str) else given
    if len(stops) > MAX_STOPS:
        raise field_error("invalid_value", f"has {len(stops)} entries; at most {MAX_STOPS} are allowed")
    for index, stop in enumerate(stops):
        at = "" if isinstance(given, str) else f"[{index}]"
        if not isinstance(stop, str):
            raise field_error("invalid_type", "must be a string", at)
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise field_error(
                "invalid_value",
                f"has {len(stop)} characters; a stop string must have between 1 and {MAX_STOP_CHARACTERS}",
                at,
            )
    return tuple(stops)


def _logit_bias(given: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be an object that maps token ids to numbers")
    if len(given) > MAX_BIASES:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_BIASES} are allowed")
    for key, bias in given.items():
        if not _TOKEN_ID.fullmatch(key):
            raise field_error("invalid_value", "must be a token id in decimal digits", f".{key}")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise field_error("invalid_type", "must be a number", f".{key}")
        if not -100 <= bias <= 100:
            raise field_error("invalid_value", "must be between -100 and 100", f".{key}")
    return tuple((int(key), float(bias)) for key, bias in given.items())


def _token_ids(given: object) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of token ids")
    if len(given) > MAX_BIASES:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_BIASES} are allowed")
    for index, token in enumerate(given):
        if type(token) is not int:
            raise field_error("invalid_type", "must be a token id, which is an integer", f"[{index}]")
    return tuple(dict.fromkeys(given))


def _few_pairs(given: object) -> object:
    if isinstance(given, dict) and len(given) > MAX_PAIRS:
        raise field_error("invalid_value", f"has {len(given)} pairs; at most {MAX_PAIRS} are allowed")
    return given


def _short_pairs(given: dict[str, str]) -> dict[str, str]:
    for key, value in given.items():
        if len(key) > MAX_KEY_CHARACTERS or len(value) > MAX_VALUE_CHARACTERS:
            phrase = (
                f"is too long; a key may have at most {MAX_KEY_CHARACTERS} characters and a value "
                f"at most {MAX_VALUE_CHARACTERS}"
            )
            raise field_error("invalid_value", phrase, f".{shortened(key)}")
    return given


_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
Stops = Annotated[
    tuple[str, ...],
    BeforeValidator(
        _stops, json_schema_input_type=_Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)]
    ),
]
LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    BeforeValidator(_logit_bias, json_schema_input_type=dict[str, _Bias]),
    Field(json_schema_extra={"maxProperties": MAX_BIASES}),
]
TokenIds = Annotated[
    tuple[int, ...],
    BeforeValidator(_token_ids, json_schema_input_type=Annotated[list[int], Field(max_length=MAX_BIASES)]),
]
Metadata = Annotated[
    dict[str, str],
    BeforeValidator(_few_pairs),
    AfterValidator(_short_pairs),
    Field(json_schema_extra={"maxProperties": MAX_PAIRS}),
]
"""Metadata with OpenAI's limits."""
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
