"""The flags that every command with settings takes, made from the list of settings."""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from config.setting import Setting
from config.settings import SETTINGS
from config.sources import CONFIG_VARIABLE, Resolved, resolve, suggestion


class UsageError(Exception):
    """The command line is wrong; the message is one line that says how."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint as a UsageError, with the command that it is about."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def flags(self) -> list[str]:
        """Every flag that this command knows."""
        return list(self._option_string_actions)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Give the parser --config and one flag for each setting.

    Values stay text: config reads flags and variables by the same rules.
    """
    parser.usage = "%(prog)s [--config FILE] [--SETTING VALUE ...]"
    group = parser.add_argument_group("settings")
    group.add_argument(
        "--config", metavar="FILE", help=f"TOML file with settings by their names ({CONFIG_VARIABLE})"
    )
    for known in SETTINGS.values():
        if known.kind == "yes or no":
            group.add_argument(known.flag, nargs="?", const="true", metavar="true|false", help=_help(known))
            continue
        group.add_argument(
            known.flag,
            action="append" if known.kind == "texts" else "store",
            metavar=_placeholder(known),
            help=_help(known),
        )


def resolve_arguments(arguments: argparse.Namespace) -> Resolved:
    """Merge the flags in arguments with the environment, the file and the defaults.

    Raises config.setting.SettingsError, as config.sources.resolve does.
    """
    given = {name: getattr(arguments, name) for name in SETTINGS}
    flags = {
        name: ",".join(text) if isinstance(text, list) else text
        for name, text in given.items()
        if text is not None
    }
    return resolve(flags, os.environ, Path(arguments.config) if arguments.config else None)


def unknown_arguments(parser: Parser, unknown: list[str]) -> UsageError:
    """The error for arguments that the parser does not know; a mistyped flag gets the closest known one."""
    first = unknown[0].split("=")[0]
    closest = suggestion(first, parser.flags(), "--") if first.startswith("-") else ""
    return UsageError(f"unknown argument {first}{closest or f' (see {parser.prog} --help)'}")


def _placeholder(known: Setting) -> str:
    if known.choices:
        return "|".join(known.choices)
    return {"text": "TEXT", "texts": "NAME", "whole number": "N", "number": "X"}[known.kind]


def _help(known: Setting) -> str:
    default = "none" if known.default in (None, ()) else known.default
    if known.kind == "yes or no":
        default = str(default).lower()
    return f"{known.help} Default: {default} ({known.variable})".replace("%", "%%")
