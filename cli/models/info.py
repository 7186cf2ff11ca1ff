"""`reprise info`: say what a model's folder holds, without loading it."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from reprise.cli.arguments import FailedError, failing
from reprise.cli.units import format_bytes

if TYPE_CHECKING:
    from reprise.engine.checkpoint import CheckpointInfo

HELP = "Say what a model's folder holds, and which drafters it can have, without loading it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and --json to the parser."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="A model's folder, the name of a model that has been downloaded, or a GGUF file or smollm2 that "
        "has been converted.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Describe a model's folder; return 0. Raises FailedError if it is missing or unreadable."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.checkpoint import inspect_checkpoint
    from reprise.engine.interface.errors import ModelError

    with failing(ModelError):
        info = inspect_checkpoint(_folder_of(arguments.model))
    if arguments.json:
        print(json.dumps(asdict(info), indent=2))
    else:
        _print_table(info)
    return 0


def _folder_of(model: str) -> str:
    """Return the folder that is served if this is named. Raises FailedError if it is not converted yet."""
    from reprise.engine.model.convert.sources import is_converted_first

    if not is_converted_first(model):
        return model
    from reprise.engine.model.convert.conversion import folder_of
    from reprise.engine.model.convert.sources import ConvertError

    with failing(ConvertError):
        folder = folder_of(model)
    if not folder.exists():
        raise FailedError(f"{model} is converted when it is first served: reprise serve --model {model}")
    return str(folder)


def _print_table(info: "CheckpointInfo") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=info.name, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in describe(info):
        table.add_row(name, value)
    Console(highlight=False, markup=False).print(table)


def describe(info: "CheckpointInfo") -> list[tuple[str, str]]:
    """Return the (name, value) lines of the table that describes a model's folder."""
    lines = [
        ("kind", f"{info.kind} ({info.architecture})"),
        ("layers", _count(info.num_layers)),
        ("context", f"{_count(info.context_tokens)} tokens"),
        ("vocabulary", f"{_count(info.vocab_size)} tokens"),
        ("parameters", f"{info.num_parameters:,}"),
        ("weights", f"{format_bytes(info.weight_bytes)} in {info.num_files} file(s), {_weights(info)}"),
    ]
    if info.weights_note:
        lines.append(("here", info.weights_note))
    if cache := info.cache:
        lines.append(("1,000 tokens", f"{format_bytes(1000 * cache.token_bytes)} of keys and values"))
        lines += [
            ("sliding window", f"of {window:,} tokens, {format_bytes(each * window)} a row")
            for each, window in cache.windows
        ]
        if cache.fixed_bytes:
            lines.append(("state", f"{format_bytes(cache.fixed_bytes)} a row"))
        shared = "one forward pass for all, if the trial at load finds no fault"
        lines.append(("rows", shared if cache.has_known_kinds else "a forward pass each"))
    if info.vectors:
        lines.append(("vectors", info.vectors))
    if info.images:
        lines.append(("images", info.images))
    for head in info.heads:
        more = f", {head.num_layers} layers, of which the first is used" if head.num_layers > 1 else ""
        lines.append(("head", f"{head.kind} in {head.source}, {format_bytes(head.num_bytes)}{more}"))
    if info.kind == "model":
        lines.append(("drafters", ", ".join(info.drafters) or "none"))
    lines += [("refused", reason) for reason in info.refused]
    return lines


def _weights(info: "CheckpointInfo") -> str:
    if info.quantization is None:
        return info.dtype or "no numbers"
    told = ", ".join(f"{name} {value}" for name, value in info.quantization.items())
    return f"quantized ({told}), the rest {info.dtype}"


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"
