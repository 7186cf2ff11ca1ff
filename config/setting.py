"""What one setting is: its type, its limits, how it reads from text, and what it says when it is wrong."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

ValueT = TypeVar("ValueT")
Value = str | int | float | bool | tuple[str, ...] | None
Kind = Literal["text", "texts", "whole number", "number", "yes or no"]

_KINDS: dict[type, Kind] = {
    str: "text",
    tuple: "texts",
    int: "whole number",
    float: "number",
    bool: "yes or no",
}
_YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class SettingsError(Exception):
    """A setting is wrong. The message names it, the limit and where the value came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that a person can set, with all that flags, variables and help pages need to know.

    optional: None is allowed; in text, and in a file, which has no word for it, it is written "none".
    choices: every allowed value, or empty for any.
    secret: the value is shown to nobody, neither in a complaint nor by `reprise config`.
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

    @property
    def flag(self) -> str:
        """Its name on the command line, such as --max-rows."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment, such as REPRISE_MAX_ROWS."""
        return "REPRISE_" + self.name.upper()

    def parse(self, text: str) -> Value:
        """Read a value from a flag or a variable; a list is separated by commas.

        Raises SettingsError if the text is no such value.
        """
        value: Value = text
        if self.optional and text.lower() == "none":
            value = None
        elif self.kind == "texts":
            value = tuple(part.strip() for part in text.split(",")) if text else ()
        elif self.kind == "yes or no":
            value = _YES_OR_NO.get(text.lower(), text)
        elif self.kind in ("whole number", "number"):
            try:
                value = int(text) if self.kind == "whole number" else float(text)
            except ValueError:
                raise SettingsError(self._complaint(text, self._wanted())) from None
        return self.check(value)

    def check(self, value: object) -> Value:
        """Return the value, a list of texts as a tuple.

        Raises SettingsError if type, choice or range is wrong.
        """
        if self.optional and value in (None, "none"):
            return None
        match self.kind, value:
            case "text", str(text) if text and (not self.choices or text in self.choices):
                return text
            case "texts", list(parts) | tuple(parts) if all(isinstance(p, str) and p for p in parts):
                return tuple(parts)
            case "yes or no", bool(choice):
                return choice
            # TOML's true is an int to Python, and never meant as one.
            case ("whole number" | "number", bool()):
                pass
            case ("whole number", int(number)) | ("number", int(number) | float(number)):
                if isinstance(number, float) and not math.isfinite(number):
                    raise SettingsError(self._complaint(number, "finite"))
                if not self._in_range(number):
                    raise SettingsError(self._complaint(number, self._range()))
                return number
        raise SettingsError(self._complaint(value, self._wanted()))

    def _in_range(self, number: float) -> bool:
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= number <= high

    def _range(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"between {self.at_least} and {self.at_most}"
        return "" if self.at_least is None else f"at least {self.at_least}"

    def _wanted(self) -> str:
        if self.choices:
            wanted = "one of " + ", ".join(self.choices)
        elif self.kind == "text":
            wanted = "text, and not empty"
        elif self.kind == "texts":
            wanted = "a list of names, none of them empty"
        elif self.kind == "yes or no":
            wanted = "true or false"
        else:
            wanted = f"a {self.kind} {self._range()}".rstrip()
        return wanted + (", or none" if self.optional else "")

    def _complaint(self, value: object, wanted: str) -> str:
        if self.secret:
            return f"{self.name} must be {wanted}"
        shown = value if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
        return f"{self.name} is {shown}; it must be {wanted}"


def setting(
    default: ValueT,
    help_text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    secret: bool = False,
) -> ValueT:
    """Declare a field of Settings: its default, one sentence of help, limits, and whether it is secret."""
    make: Callable[..., ValueT] = field
    told = {"help": help_text, "at_least": at_least, "at_most": at_most, "secret": secret}
    return make(default=default, metadata=told, repr=not secret)


def described(name: str, annotation: Any, default: Any, metadata: dict[str, Any]) -> Setting:
    """Turn a declared field into the Setting that its annotation and metadata describe.

    annotation: str, int, float, bool, tuple[str, ...] or a Literal of strings; the first two with | None
        as well.
    """
    members = get_args(annotation)
    if getattr(annotation, "__origin__", None) is Literal:
        return Setting(name=name, kind="text", default=default, choices=members, **metadata)
    optional = type(None) in members
    plain = members[0] if optional else getattr(annotation, "__origin__", annotation)
    return Setting(name=name, kind=_KINDS[plain], default=default, optional=optional, **metadata)
