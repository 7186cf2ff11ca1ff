"""Build the flags of the commands that take settings, from the list of settings."""

import argparse
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from reprise.config.setting import Setting
from reprise.config.settings import GROUPS, SETTINGS
from reprise.config.sources import CONFIG_VARIABLE, Resolved, resolve
from reprise.config.unknown import explain_unknown

_PLACEHOLDERS = {
    "model": "FOLDER|NAME",
    "name": "NAME",
    "host": "HOST",
    "key": "KEY",
    "file": "FILE",
    "dir": "FOLDER",
    "origin": "ORIGIN",
    "bytes": "BYTES",
    "tokens": "TOKENS",
    "s": "SECONDS",
    "threshold": "FRACTION",
    "overhead": "FRACTION",
    "split": "pipeline|tensor|LAYERS",
    "record": "FILE",
    "kwargs": "JSON",
    "path": "FOLDER",
}
"""Placeholder for a flag's value in the help, by the last word of the setting's name."""
_PRECEDENCE = """\
Flags override environment variables, variables override the file, and the file
overrides the defaults. The value none unsets an optional setting. `reprise config`
prints the values in force.
"""


class UsageError(Exception):
    """The command line is invalid. The message is one line that says why."""


class FailedError(Exception):
    """The command failed and ends with status 1. The message says why."""


@contextmanager
def failing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into FailedError, with the same message."""
    try:
        yield
    except kinds as fault:
        raise FailedError(str(fault)) from fault


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of printing its usage and exiting."""

    def __init__(self, **more: Any) -> None:
        super().__init__(conflict_handler="resolve", **more)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message and the command's --help."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def flags(self) -> list[str]:
        """Return every flag of this command."""
        return list(self._option_string_actions)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add --config and one flag per setting to the parser, grouped by topic.

    The values stay text, so that config parses flags and environment variables alike.
    """
    parser.usage = "%(prog)s [--config FILE] [--SETTING VALUE ...]"
    parser.formatter_class = _SettingsFormatter
    parser.epilog = _PRECEDENCE
    parser.add_argument(
        "-h", "--help", action=_Help, metavar="GROUP",
        help="Show this, or the settings of a group, such as --help drafting, or --help all.",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="FILE",
        help=f"TOML file of settings, with lines such as max_rows = 4. Default: none ({CONFIG_VARIABLE})",
    )  # fmt: skip
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for known in map(SETTINGS.__getitem__, names):
            _add_flag(group, known)


def resolve_arguments(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Resolved:
    """Merge the parsed flags with the environment, the file and the defaults.

    Raises SettingsError as reprise.config.sources.resolve() does.
    """
    given = {name: getattr(arguments, name) for name in SETTINGS}
    flags = {
        name: ",".join(text) if isinstance(text, list) else text
        for name, text in given.items()
        if text is not None
    }
    return resolve(flags, environment, Path(arguments.config) if arguments.config else None)


def unknown_arguments(parser: Parser, unknown: list[str]) -> UsageError:
    """Return the error for unknown arguments; for a mistyped flag it suggests the closest known one."""
    first = unknown[0].split("=")[0]
    known = parser.flags() if first.startswith("-") else ()
    return UsageError(
        explain_unknown(f"argument {first}", first, known, "--", f" (see {parser.prog} --help)")
    )


class _Help(argparse.Action):
    """Prints all settings' names, or the help of one group, and exits."""

    def __init__(self, option_strings: list[str], **more: Any) -> None:
        super().__init__(option_strings, nargs="?", **more | {"default": argparse.SUPPRESS})

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, word: Any, *_: Any) -> None:
        """Print the help of the groups whose titles are the word, or else have it; all: of every group."""
        said = str(word or "").lower()
        titles = [title for title in GROUPS if title.lower() == said]
        titles = titles or [title for title in GROUPS if said and (said == "all" or said in title.lower())]
        shown = {name for title in titles for name in GROUPS[title]}
        for action in parser._actions if shown else ():
            is_shown = action.dest in shown
            action.help = _help_of(SETTINGS[action.dest]) if is_shown else argparse.SUPPRESS
        if not shown:
            parser.epilog = f"settings, by group:\n{''.join(map(_names_of, GROUPS))}\n{_PRECEDENCE}"
        parser.print_help()
        parser.exit()


def _names_of(title: str) -> str:
    """Return the title of a group with the flags of its settings."""
    flags = " ".join(SETTINGS[name].flag for name in GROUPS[title])
    indent = " " * 22
    text = textwrap.fill(flags, 88, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return f"  {title:<20}{text.lstrip()}\n"


class _SettingsFormatter(argparse.RawDescriptionHelpFormatter):
    """Put every flag on a line of its own and its help below: most flags are too long for two columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=6)


def _add_flag(group: "argparse._ArgumentGroup", known: Setting) -> None:
    more: dict[str, Any] = {"metavar": _placeholder(known)}
    if known.kind == "boolean":
        more = {"nargs": "?", "const": "true", "metavar": "true|false"}
    elif known.kind == "list":
        more["action"] = "append"
    group.add_argument(known.flag, help=argparse.SUPPRESS, **more)


def _help_of(known: Setting) -> str:
    return f"{known.help} Default: {known.default_text} ({known.variable})".replace("%", "%%")


def _placeholder(known: Setting) -> str:
    if known.choices:
        return "|".join((*known.choices, *(["N"] if known.kind == "number" else ())))
    last_word = known.name.rpartition("_")[2]
    return _PLACEHOLDERS.get(last_word) or ("TEXT" if known.kind in ("text", "list") else "N")
