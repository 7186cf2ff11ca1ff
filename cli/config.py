"""`reprise config`: the settings in force, and where each of them came from."""

import argparse
import json

from cli.arguments import add_settings, resolve_arguments
from config.settings import SETTINGS
from config.sources import Resolved

HELP = "Print the settings in force, and where each of them came from."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise config` takes: all that `reprise serve` does, and --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a program to read")
    add_settings(parser)
    parser.usage = "%(prog)s [--json] [--config FILE] [--SETTING VALUE ...]"
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return 0."""
    resolved = resolve_arguments(arguments)
    print(as_json(resolved) if arguments.json else as_toml(resolved))
    return 0


def as_json(resolved: Resolved) -> str:
    """One object by setting: value, source (default, file, environment, flag) and the source's name.

    A secret that is set is "hidden".
    """
    table = {
        name: {"value": getattr(resolved.settings, name), "source": origin.source, "name": origin.name}
        for name, origin in resolved.origins.items()
    }
    for name, entry in table.items():
        if entry["value"] and SETTINGS[name].secret:
            entry["value"] = "hidden"
    return json.dumps(table, indent=2)


def as_toml(resolved: Resolved) -> str:
    """A table that is itself a settings file; what is not set is a comment, as TOML has no word for it."""
    lines = {name: _line(name, getattr(resolved.settings, name)) for name in SETTINGS}
    width = max(map(len, lines.values()))
    return "\n".join(f"{line:<{width}}  # {resolved.origins[name]}" for name, line in lines.items())


def _line(name: str, value: object) -> str:
    if value and SETTINGS[name].secret:
        return f"# {name} is set, and not shown"
    if value is None and SETTINGS[name].default is not None:
        return f'{name} = "none"'
    if value is None:
        return f"# {name} is not set"
    # For text, numbers and lists of text TOML and JSON agree.
    return f"{name} = {json.dumps(value)}"
