"""`reprise config`: print the settings in force and where each came from."""

import argparse
import json

from reprise.cli.arguments import add_settings, resolve_arguments
from reprise.config.settings import SETTINGS
from reprise.config.sources import Resolved

HELP = "Print the settings in force and where each came from."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json and the arguments of `reprise serve` to the parser."""
    parser.add_argument("--json", action="store_true", help="Print JSON instead of TOML.")
    add_settings(parser)
    parser.usage = "%(prog)s [--json] [--config FILE] [--SETTING VALUE ...]"
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return 0."""
    resolved = resolve_arguments(arguments)
    print(as_json(resolved) if arguments.json else as_toml(resolved))
    return 0


def as_json(resolved: Resolved) -> str:
    """Return a JSON object that maps each setting to its value, its source and the name of that source.

    The source is default, file, environment or flag. A secret that is set appears as "hidden". The sections
    of single models, if there are any, are under "models".
    """
    table = {
        name: {"value": getattr(resolved.settings, name), "source": origin.source, "name": origin.name}
        for name, origin in resolved.origins.items()
    }
    for name, entry in table.items():
        if entry["value"] and SETTINGS[name].secret:
            entry["value"] = "hidden"
    sections = {"models": resolved.sections} if resolved.sections else {}
    return json.dumps(table | sections, indent=2)


def as_toml(resolved: Resolved) -> str:
    """Return a valid settings file. Settings without a value become comments, since TOML has no null."""
    lines = {name: _line(name, getattr(resolved.settings, name)) for name in SETTINGS}
    width = max(map(len, lines.values()))
    shown = [f"{line:<{width}}  # {resolved.origins[name]}" for name, line in lines.items()]
    for model, section in resolved.sections.items():
        shown += ["", f"[models.{_toml(model)}]"]
        shown += [f"{name} = {_toml('none' if value is None else value)}" for name, value in section.items()]
    return "\n".join(shown)


def _line(name: str, value: object) -> str:
    if value and SETTINGS[name].secret:
        return f"# {name} is set, but not shown"
    if value is None and SETTINGS[name].default is not None:
        return f'{name} = "none"'
    if value is None:
        return f"# {name} is not set"
    return f"{name} = {_toml(value)}"


def _toml(value: object) -> str:
    """Return a setting's value in TOML; an object as JSON text, which may hold null."""
    # TOML and JSON write text, numbers, booleans and lists of text alike, but for escaped UTF-16 pairs.
    text = json.dumps(json.dumps(value) if isinstance(value, dict) else value, ensure_ascii=False)
    # A file's name may hold bytes that are no text.
    return text.encode(errors="backslashreplace").decode()
