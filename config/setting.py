"""Describe one setting: its type, limits, parsing and error messages."""

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from reprise.config.errors import RepriseError

ValueT = TypeVar("ValueT")
Value = str | int | float | bool | tuple[str, ...] | Mapping[str, Any] | None
Kind = Literal["text", "list", "whole number", "number", "boolean", "object"]

_KINDS: dict[Any, Kind] = {
    str: "text",
    tuple: "list",
    int: "whole number",
    float: "number",
    bool: "boolean",
    Mapping: "object",
}
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class SettingsError(RepriseError):
    """A setting has a wrong value. The message names the setting, the limit and the value's origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, with everything that flags, environment variables, help and docs need to know.

    optional: None is allowed. Text and TOML, which has no null, write it as "none".
    choices: the allowed values, or words that are allowed in place of a number; empty if every value of the
        kind is allowed.
    secret: the value is never shown, neither in error messages nor by `reprise config`.
    unset: the effect of None as text, such as "the model's own limit"; empty if it has none.
    is_path: whether a leading ~ means the home folder.
    """

    name: str
    help: str
    kind: Kind
    default: Value
    optional: bool = False
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    secret: bool = False
    unset: str = ""
    is_path: bool = False

    @property
    def flag(self) -> str:
        """The flag on the command line, such as --max-rows."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, such as REPRISE_MAX_ROWS."""
        return "REPRISE_" + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default for people: as written for the flag, or the effect of None."""
        if self.default is None:
            return self.unset or "none"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple):
            return ", ".join(self.default) or "none"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def parse(self, text: str) -> Value:
        """Read a value from the text of a flag or variable. Commas separate the entries of a list.

        Raises SettingsError if the text is not a valid value.
        """
        value: Value = text
        if self.optional and text.lower() == "none":
            value = None
        elif self.kind == "list":
            value = tuple(part.strip() for part in text.split(",")) if text else ()
        elif self.kind == "boolean":
            value = _BOOLEANS.get(text.lower(), text)
        elif self.kind in ("whole number", "number") and text not in self.choices:
            try:
                value = int(text) if self.kind == "whole number" else float(text)
            except ValueError:
                raise SettingsError(self._message(text, self._expected())) from None
        return self.check(value)

    def check(self, value: object) -> Value:
        """Return the value if it is valid; a list becomes a tuple, and the JSON text of an object the object.

        Raises SettingsError if it has the wrong type, is not one of the choices or is out of range.
        """
        if self.optional and value in (None, "none"):
            return None
        match self.kind, value:
            case "number", str(word) if word in self.choices:
                return word
            case "text", str(text) if text and (not self.choices or text in self.choices):
                # Not Path's: it drops the ./ and the last /, which tell folders from names on the hub.
                return os.path.expanduser(text) if self.is_path else text  # noqa: PTH111
            case "list", list(parts) | tuple(parts) if all(isinstance(p, str) and p for p in parts):
                return tuple(parts)
            case "boolean", bool(choice):
                return choice
            case "object", str() | dict():
                with suppress(TypeError, ValueError, RecursionError):
                    entries = json.loads(value) if isinstance(value, str) else value
                    # Not TOML's dates, nor NaN.
                    json.dumps(entries, allow_nan=False)
                    if isinstance(entries, dict):
                        return entries
            # Python's bool is an int, but true in a TOML file never means a number.
            case ("whole number" | "number", bool()):
                pass
            case ("whole number", int(number)) | ("number", int(number) | float(number)):
                if isinstance(number, float) and not math.isfinite(number):
                    raise SettingsError(self._message(number, "finite"))
                if not self._in_range(number):
                    raise SettingsError(self._message(number, self._range()))
                return number
        raise SettingsError(self._message(value, self._expected()))

    def _in_range(self, number: float) -> bool:
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= number <= high

    def _range(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"between {self.at_least} and {self.at_most}"
        return "" if self.at_least is None else f"at least {self.at_least}"

    def _expected(self) -> str:
        if self.choices:
            number = ["or a number"] if self.kind == "number" else []
            expected = "one of " + ", ".join([*self.choices, *number])
        elif self.kind == "text":
            expected = "non-empty text"
        elif self.kind == "list":
            expected = "a list without empty entries"
        elif self.kind == "boolean":
            expected = "true or false"
        elif self.kind == "object":
            expected = 'a JSON object such as {"preserve_thinking": true}'
        else:
            separator = " of " if self._range().startswith("at least") else " "
            expected = f"a {self.kind}{separator}{self._range()}".rstrip()
        return expected + (", or none" if self.optional else "")

    def _message(self, value: object, expected: str) -> str:
        if self.secret:
            return f"{self.name} must be {expected}"
        shown = value if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
        return f"{self.name} is {shown}; it must be {expected}"


def setting(
    default: ValueT,
    help_text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    unset: str = "",
    holds: Literal["value", "path", "secret"] = "value",
) -> ValueT:
    """Declare a field of Settings. The keywords are those of Setting; help_text is one or more sentences.

    holds: "secret" and "path" set the fields secret and is_path of Setting.
    """
    make: Callable[..., ValueT] = field
    limits = {"at_least": at_least, "at_most": at_most}
    is_secret, is_path = holds == "secret", holds == "path"
    metadata = {"help": help_text, "secret": is_secret, "unset": unset, "is_path": is_path, **limits}
    return make(default=default, metadata=metadata, repr=not is_secret)


def make_setting(name: str, annotation: Any, default: Any, metadata: dict[str, Any]) -> Setting:
    """Build the Setting that a declared field's annotation and metadata describe.

    annotation: str, int, float, bool, tuple[str, ...] or a Literal of strings; str, int, float and
        Mapping[str, Any] also with None; float also after a Literal.
    """
    members = get_args(annotation)
    if getattr(annotation, "__origin__", None) is Literal:
        return Setting(name=name, kind="text", default=default, choices=members, **metadata)
    if members and (words := get_args(members[0])) and members[1] is float:
        return Setting(name=name, kind="number", default=default, choices=words, **metadata)
    optional = type(None) in members
    plain = members[0] if optional else annotation
    plain = getattr(plain, "__origin__", plain)
    return Setting(name=name, kind=_KINDS[plain], default=default, optional=optional, **metadata)
