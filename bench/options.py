"""Flags that several commands share, and parsers for their values; argparse prints errors in one line."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from reprise.bench.experiment import ArgumentsError
from reprise.bench.workloads import WORKLOADS
from reprise.config.settings import KEY, SETTINGS
from reprise.engine.model.convert.sources import is_converted_first, is_path

MACHINES = "hosts", "split"
"""Settings of a model on several machines."""

Parser = Callable[[str], Any]


def _as_model(source: str) -> Path:
    """Return a model as a path: its folder, a GGUF file, a packaged model, or a name on the hub.

    Raises ValueError for a path at which there is no model.
    """
    path = Path(source)
    if (path / "config.json").is_file() or is_converted_first(source):
        return path
    if is_path(source) or path.exists():
        raise ValueError(source)
    return path


def _parser(convert: Parser, is_valid: Callable[[Any], object], message: str) -> Parser:
    """Return a parser that refuses text that cannot be converted or is invalid. message: {} is the text."""

    def parse(text: str) -> Any:
        with suppress(ValueError):
            if is_valid(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(message.format(text))

    return parse


def listed(parse: Parser) -> Parser:
    """Return a parser of comma-separated values, which drops repeated ones. parse: parses one value."""
    return lambda text: tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))


count = _parser(int, lambda value: value > 0, "{} is not a whole number above 0")
levels, names = listed(count), listed(str)
number = _parser(float, lambda value: value >= 0, "{} is not a number of at least 0")
numbers = listed(number)
rates = listed(_parser(float, lambda value: 0 <= value <= 1, "{} is not a number from 0 to 1"))
# No server accepts longer drafts.
draft_lengths = listed(_parser(count, lambda length: length <= 255, "{} is above 255"))
# People paste the base URL that they give their client.
url = _parser(
    lambda text: text.rstrip("/").removesuffix("/v1"), re.compile(r"https?://[^/?#\s]+(/\S*)?").fullmatch,
    "{} is not an address such as http://127.0.0.1:8000",
)  # fmt: skip
# The message leaves the key out, because terminal output may be logged.
api_key = _parser(str, KEY.fullmatch, "a key must be visible ASCII characters without spaces")
model = _parser(
    _as_model, lambda _: True,
    "{} is not a model folder: it has no config.json (`reprise convert` makes one of a GGUF file)",
)  # fmt: skip
"""A model, named in any way that `reprise serve` takes; cli puts a folder in its place."""
output_file = _parser(
    Path, lambda file: file.parent.is_dir() and not file.is_dir(),
    "cannot write {}: it is a folder, or its folder does not exist",
)  # fmt: skip
input_file = _parser(Path, Path.is_file, "{} is not a file")

SHARED: dict[str, tuple[Any, str, str]] = {
    "model": (model, "MODEL", "Model, as `reprise serve` takes it; without it the bundled model."),
    "draft-model": (model, "MODEL", "Draft model, which draft-model and auto then use."),
    "workloads": (names, "A,B", f"Generated chats: any of {', '.join(WORKLOADS)}."),
    "prompts": (input_file, "FILE", 'Your own chats: JSON lines of chat requests, {"messages": [...]}.'),
    "prompt-tokens": (levels, "N,M", "Approximate prompt lengths, for workloads of variable length."),
    "cases": (count, "N", "Chats of each workload and length."),
    "max-tokens": (count, "N", "Maximum tokens of each answer."),
    "repeats": (count, "N", "Measured runs of each chat."),
    "rounds": (count, "N", "Measured rounds, after one warm-up round."),
    "num-draft-tokens": (draft_lengths, "K,L", "Maximum draft lengths."),
    "draft-types": (names, "X,Y", "Draft types."),
    "seed": (int, "N", "Seed of everything that is generated."),
    "json": (output_file, "FILE", "Write a result document to FILE."),
    "html": (output_file, "FILE", "Write a report page to FILE."),
}  # fmt: skip
"""Parser, placeholder and help of each flag."""

OUTPUTS: dict[str, Any] = {"json": None, "html": None}
"""The flags of files to write, without a default."""


class Flag(NamedTuple):
    """A flag of a command.

    parse: None makes a flag without a value. default: is added to the help, unless the help names it.
    is_repeated: whether the flag may be given several times.
    """

    name: str
    parse: Any
    placeholder: str | None
    default: Any
    help: str
    is_repeated: bool = False


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag]) -> None:
    """Add a command's arguments to the parser."""
    for name, parse, placeholder, default, text, is_repeated in flags:
        more: dict[str, Any] = {"action": "store_true"}
        if parse is not None:
            action = "append" if is_repeated else "store"
            more = {"type": parse, "metavar": placeholder, "default": default, "action": action}
        if default not in (None, (), []) and "Default:" not in text:
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
            text = f"{text} Default: {shown}."
        parser.add_argument(name, help=text, **more)


def shared(**defaults: Any) -> Iterator[Flag]:
    """Yield flags of SHARED. defaults: the default of each flag, by its name with underscores."""
    for name, default in defaults.items():
        flag = name.replace("_", "-")
        parse, placeholder, text = SHARED[flag]
        yield Flag(f"--{flag}", parse, placeholder, default, text)
        if name == "draft_model":
            yield from of_settings("draft_translation")


def of_settings(*names: str) -> Iterator[Flag]:
    """Yield the flags of `reprise serve` for these settings.

    Parsing raises SettingsError for a value that is not valid.
    """
    for known in map(SETTINGS.__getitem__, names):
        placeholder = "|".join(known.choices) or known.name.upper()
        yield Flag(known.flag, known.parse, placeholder, known.default, known.help)


def settings(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the parsed values of these settings, as keyword arguments of Settings."""
    given = {name: getattr(arguments, name) for name in names}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def flags(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return the parsed values of these settings as flags of `reprise serve`, without the defaults."""
    given = settings(arguments, *names).items()
    return [f"{SETTINGS[name].flag}={value}" for name, value in given if value != SETTINGS[name].default]


def check_names(flag: str, given: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise ArgumentsError for a name that is not allowed."""
    if wrong := [name for name in given if name not in allowed]:
        raise ArgumentsError(f"{flag}: {wrong[0] or 'empty'} is not one of {', '.join(allowed)}")


def check_drafts(arguments: argparse.Namespace, types: Sequence[str]) -> None:
    """Raise ArgumentsError for a draft type that is not in types, or draft-model without --draft-model."""
    check_names("--draft-types", arguments.draft_types, types)
    if "draft-model" in arguments.draft_types and not arguments.draft_model:
        raise ArgumentsError("--draft-types: draft-model needs a draft model; name one with --draft-model")
