"""`reprise list`: show the models that have been downloaded, from the hub or in a package."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from reprise.cli.units import format_bytes

if TYPE_CHECKING:
    from reprise.engine.model.files.model_folder import ModelFolder

HELP = "Show the models that have been downloaded, with size and context."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json to the parser."""
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the downloaded models; return 0."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.model.convert.conversion import list_packaged
    from reprise.engine.model.hub import HubCache

    cache = HubCache()
    models = sorted([*cache.list_models(), *list_packaged()], key=lambda model: model.name.lower())
    if arguments.json:
        print(json.dumps([asdict(model) for model in models], indent=2, default=str))
    elif models:
        _print_table(models)
    else:
        print(f"there are no models in {cache.folder}; `reprise pull NAME` downloads one")
    return 0


def _print_table(models: list["ModelFolder"]) -> None:
    from rich.console import Console
    from rich.table import Table

    from reprise.engine.interface.embeddings import SPECIAL

    table = Table(box=None, pad_edge=False)
    table.add_column("model", style="bold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("context", justify="right", no_wrap=True)
    table.add_column("for", overflow="fold")
    table.add_column("cannot be served", overflow="fold")
    for model in models:
        context = "" if model.context_tokens is None else f"{model.context_tokens:,}"
        purpose = SPECIAL.get(model.purpose, "")
        if model.embedding:
            purpose = f"{purpose}: {model.embedding.describe()}"
        table.add_row(model.name, format_bytes(model.num_bytes), context, purpose, model.fault or "")
    Console(highlight=False, markup=False).print(table)
