"""The fields that constrain the answer: response_format, as in OpenAI's API, and guided_*, as in vLLM's."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import from_json, to_json

from reprise.engine.interface.request import Grammar
from reprise.server.requests.fields import (
    AcceptsPeerFields,
    RequestModel,
    Rules,
    field_error,
    notes_in,
    read_by,
    single,
    tagged_union,
)
from reprise.server.requests.json_schema import (
    MAX_SCHEMA_BYTES,
    check_regex,
    check_schema,
    check_size,
    relaxations,
    with_null_types,
)
from reprise.server.requests.lark import check_lark

MAX_CHOICES = 1000
MAX_CHOICES_CHARACTERS = 32_768
MAX_BAD_WORDS = 100
MAX_BAD_CHARACTERS = 1000

_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


def _schema(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be a JSON schema, which is an object")
    check_size(given)
    return given


def _guided_json(given: object) -> dict[str, Any]:
    if isinstance(given, str):
        if len(given) > MAX_SCHEMA_BYTES:
            phrase = f"has {len(given)} characters; a schema may have at most {MAX_SCHEMA_BYTES} bytes"
            raise field_error("schema_too_large", phrase)
        try:
            given = from_json(given, allow_inf_nan=False)
        except ValueError as fault:
            raise field_error("invalid_json", f"is not valid JSON: {fault}") from None
    schema = _schema(given)
    next(relaxations(schema))
    return schema


def _regex(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise field_error("invalid_type", "must be a regular expression, as a string that is not empty")
    check_regex(given)
    return given


def _choices(given: object, info: ValidationInfo) -> tuple[str, ...]:
    given = single(given, str, info)
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of strings")
    if not 0 < len(given) <= MAX_CHOICES:
        phrase = f"has {len(given)} entries; between 1 and {MAX_CHOICES} are allowed"
        raise field_error("invalid_value", phrase)
    for index, choice in enumerate(given):
        if not isinstance(choice, str) or not choice:
            raise field_error("invalid_type", "must be a string that is not empty", f"[{index}]")
    if (num := sum(map(len, given))) > MAX_CHOICES_CHARACTERS:
        phrase = f"has {num} characters in all; at most {MAX_CHOICES_CHARACTERS} are allowed"
        raise field_error("invalid_value", phrase)
    return tuple(given)


def _bad_words(given: object, info: ValidationInfo) -> tuple[str, ...]:
    if given == []:
        return ()
    words = _choices(given, info)
    if len(words) > MAX_BAD_WORDS or sum(map(len, words)) > MAX_BAD_CHARACTERS:
        has = f"has {len(words)} strings of {sum(map(len, words))} characters in all"
        most = f"at most {MAX_BAD_WORDS} strings of {MAX_BAD_CHARACTERS} characters in all are allowed"
        raise field_error("invalid_value", f"{has}; {most}")
    return words


def _lark(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise field_error("invalid_type", "must be a Lark grammar, as a string that is not empty")
    check_lark(given)
    return given


_Regex = Annotated[str, Field(min_length=1, json_schema_extra={"format": "rust-regex"})]
_Lark = Annotated[str, Field(min_length=1, json_schema_extra={"format": "lark"})]
_Word = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[_Word], Field(min_length=1, max_length=MAX_CHOICES)]
BadWords = Annotated[list[_Word], Field(max_length=MAX_BAD_WORDS)]


class TextFormat(RequestModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    """Any JSON object."""

    type: Literal["json_object"]


_Json = dict[str, Any]
_NullableSchema = Annotated[_Json, read_by(lambda given: with_null_types(_schema(given)), _Json)]


class JsonSchema(RequestModel):
    """A named JSON schema."""

    name: str | None = Field(None, max_length=64, pattern=r"^[a-zA-Z0-9_-]*$")
    """Name of the schema: letters, digits, underscores and dashes. Not shown to the model."""
    description: str | None = None
    """Accepted; not shown to the model."""
    schema_: _NullableSchema = Field(alias="schema")
    """The JSON schema that the answer must satisfy, enforced by llguidance. For its limits see guide.md."""
    strict: bool = False
    """Whether all of the schema must be enforced, or else refused. If false, what cannot be enforced is left
    out and named in the header x-reprise-relaxed, and the answer is checked: see guide.md."""

    @model_validator(mode="after")
    def check_limits(self) -> "JsonSchema":
        """Refuse a schema that is too large, or a strict one that cannot be enforced."""
        if self.strict:
            check_schema(self.schema_, ".schema")
        else:
            next(relaxations(self.schema_, ".schema"))
        return self


class JsonSchemaFormat(RequestModel):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


AnyFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat
_choose = tagged_union({"text": TextFormat, "json_object": JsonObjectFormat, "json_schema": JsonSchemaFormat})


def _format(given: object, info: ValidationInfo) -> Any:
    if isinstance(given, str) and not notes_in(info.context).refuses:
        given = {"type": given}
    return _choose(given)


ANY_TEXT: dict[str, Any] = {"anyOf": [{"type": "null"}, {"properties": {"type": {"const": "text"}}}]}
GUIDED: dict[str, dict[str, Any]] = {
    f"guided_{kind}": {"type": "null"} for kind in ("json", "regex", "choice", "grammar")
}
NO_WORDS: dict[str, Any] = {"enum": [None, []]}
_NEUTRAL = {"response_format": ANY_TEXT, **GUIDED, "bad_words": NO_WORDS}
"""JSON schemas of the values with which fields constrain nothing."""


def at_most_one(neutral: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a body that uses at most one field. neutral: schemas of unused ones."""
    others = ({name: schema for name, schema in neutral.items() if name != used} for used in neutral)
    return {"anyOf": [{"properties": properties} for properties in others]}


class StructuredFields(AcceptsPeerFields):
    """Fields that constrain the answer. At most one of them may be used in a request."""

    rules: ClassVar[Rules] = (at_most_one(_NEUTRAL),)

    response_format: Annotated[AnyFormat, read_by(_format, AnyFormat)] | None = None
    """Format of the answer. text: any text; json_object: any JSON object; json_schema: JSON that satisfies
    the schema."""
    guided_json: Annotated[_Json, read_by(_guided_json, _Json)] | None = None
    """The JSON schema that the answer must satisfy, as an object or a string. Not in OpenAI's API."""
    guided_regex: Annotated[str, read_by(_regex, _Regex)] | None = None
    """A regular expression that the whole answer must match. Not in OpenAI's API."""
    guided_choice: Annotated[tuple[str, ...], read_by(_choices, Choices)] | None = None
    """The answer must be one of these strings. Not in OpenAI's API."""
    guided_grammar: Annotated[str, read_by(_lark, _Lark)] | None = None
    """A grammar that the answer must follow, in llguidance's variant of Lark. Not in OpenAI's API."""

    bad_words: Annotated[tuple[str, ...], read_by(_bad_words, BadWords)] = ()
    """Strings that the answer never contains, however it is split into tokens. Reasoning and tools' arguments
    may. Not in OpenAI's API."""

    @model_validator(mode="after")
    def check_one_constraint(self) -> "StructuredFields":
        """Refuse a request with two constraints."""
        given = [name for name in _NEUTRAL if getattr(self, name) not in (None, ())]
        given = [name for name in given if not isinstance(getattr(self, name), TextFormat)]
        if len(given) > 1:
            phrase = f"and {given[1]} cannot be combined; send one of them"
            raise field_error("invalid_value", phrase, given[0])
        return self

    @property
    def relaxable_schema(self) -> dict[str, Any] | None:
        """The schema of the answer, if parts of it that cannot be enforced may be left out; else None."""
        chosen = self.response_format
        if isinstance(chosen, JsonSchemaFormat) and not chosen.json_schema.strict:
            return chosen.json_schema.schema_
        return self.guided_json

    @property
    def requested_grammar(self) -> tuple[Grammar, str] | None:
        """The grammar of the answer and the field that it comes from; None if any text is allowed."""
        match self.response_format:
            case JsonObjectFormat():
                return Grammar("json_schema", '{"type":"object"}'), "response_format"
            case JsonSchemaFormat() as chosen:
                return _json(chosen.json_schema.schema_), "response_format.json_schema.schema"
        if self.guided_json is not None:
            return _json(self.guided_json), "guided_json"
        if self.guided_regex is not None:
            return Grammar("regex", self.guided_regex), "guided_regex"
        if self.guided_choice is not None:
            return Grammar("regex", "|".join(map(_escape, self.guided_choice))), "guided_choice"
        if self.guided_grammar is not None:
            return Grammar("lark", self.guided_grammar), "guided_grammar"
        if self.bad_words:
            found = "|".join(map(_escape, self.bad_words)).replace("\n", "\\n")
            lark = f"start: TEXT\nTEXT: /(?s:.)*/ & ~(/(?s:.*)({found})(?s:.*)/)\n"
            return Grammar("lark", lark), "bad_words"
        return None


def _json(schema: dict[str, Any]) -> Grammar:
    return Grammar("json_schema", to_json(schema).decode())


def _escape(text: str) -> str:
    """Return a regular expression that matches only this text."""
    return _MARKS.sub(lambda mark: "\\" + mark[0], text)
