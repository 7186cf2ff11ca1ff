"""Build the flags of the commands that take settings, from the list of settings."""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from reprise.config.setting import Setting
from reprise.config.settings import GROUPS, SETTINGS, TUNING
from reprise.config.sources import CONFIG_VARIABLE, Resolved, resolve, suggestion

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
    "seconds": "SECONDS",
    "threshold": "FRACTION",
    "overhead": "FRACTION",
    "record": "FILE",
    "path": "FOLDER",
}
"""Placeholder for a flag's value in the help, by the last word of the setting's name."""
_PRECEDENCE = (
    "Flags override environment variables, variables override the file, and the file overrides the defaults. "
    "The value none unsets an optional setting. `reprise config` prints the values in force. "
    "--help-all also shows the settings for tuning."
)


class UsageError(Exception):
    """The command line is invalid. The message is one line that says why."""


class FailedError(Exception):
    """The command cannot do what was asked, and ends with status 1. The message says why."""


@contextmanager
def failing(*kinds: type[Exception]) -> Iterator[None]:
    """Raise FailedError in place of errors of these kinds, with the same message."""
    try:
        yield
    except kinds as fault:
        raise FailedError(str(fault)) from fault


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message and the command's --help."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def flags(self) -> list[str]:
        """Return every flag of this command."""
        return list(self._option_string_actions)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add --config and one flag per setting to the parser, grouped by topic.

    The values stay text, so that config parses flags and variables by the same rules.
    """
    parser.usage = "%(prog)s [--config FILE] [--SETTING VALUE ...]"
    parser.formatter_class = _SettingsFormatter
    parser.epilog = _PRECEDENCE
    parser.add_argument("--help-all", action=_HelpAll, help="Show all settings, those for tuning too.")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file of settings, with lines such as max_rows = 4. Default: none ({CONFIG_VARIABLE})",
    )
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
    closest = suggestion(first, parser.flags(), "--") if first.startswith("-") else ""
    return UsageError(f"unknown argument {first}{closest or f' (see {parser.prog} --help)'}")


class _HelpAll(argparse.Action):
    """Prints the help with the settings that only matter to someone tuning, and exits."""

    def __init__(self, option_strings: list[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Show the hidden flags, print the help and exit."""
        for action in parser._actions:
            if action.dest in TUNING:
                action.help = _help_of(SETTINGS[action.dest])
        parser.print_help()
        parser.exit()


class _SettingsFormatter(argparse.HelpFormatter):
    """Put every flag on a line of its own and its help below: most flags are too long for two columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=6)


def _add_flag(group: "argparse._ArgumentGroup", known: Setting) -> None:
    text = argparse.SUPPRESS if known.name in TUNING else _help_of(known)
    if known.kind == "boolean":
        group.add_argument(known.flag, nargs="?", const="true", metavar="true|false", help=text)
        return
    action = "append" if known.kind == "list" else "store"
    group.add_argument(known.flag, action=action, metavar=_placeholder(known), help=text)


def _help_of(known: Setting) -> str:
    return f"{known.help} Default: {known.default_text} ({known.variable})".replace("%", "%%")


def _placeholder(known: Setting) -> str:
    if known.choices:
        return "|".join(known.choices)
    last_word = known.name.rpartition("_")[2]
    return _PLACEHOLDERS.get(last_word) or ("TEXT" if known.kind in ("text", "list") else "N")
