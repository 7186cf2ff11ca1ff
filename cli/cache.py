"""`reprise cache`: show or empty the folder in which a server keeps prompts over a restart."""

import argparse
import os
import re
from contextlib import suppress
from pathlib import Path

from reprise.cli.arguments import FailedError
from reprise.cli.output import format_bytes, print_table
from reprise.config.settings import AUTO, SETTINGS, prefixes_folder
from reprise.config.sources import resolve

HELP = "Show how much the server keeps on disk of prompts and finished requests, or delete it."
_PROMPTS = re.compile(r"[0-9a-f]{40}\.prefix(\.[0-9a-f]{16}\.new)?")
_LEARNED = re.compile(r"(history-[0-9a-f]{16}|acceptance-[0-9a-f]{16}\.json)(\.[0-9a-f]{16}\.new)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --prefix-cache-dir and --empty to the parser."""
    known = SETTINGS["prefix_cache_dir"]
    parser.add_argument(
        known.flag, metavar="FOLDER",
        help=f"The server's folder. Default: {known.variable}, else ~/.cache/reprise/prefixes",
    )  # fmt: skip
    parser.add_argument("--empty", action="store_true", help="Delete the files.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the sizes, or delete the files; return 0. Raises FailedError if the disk refuses."""
    given = arguments.prefix_cache_dir
    # A folder that is named is looked at whatever else is set.
    if given is None:
        chosen = resolve({}, os.environ).settings.prefix_cache_dir
    else:
        chosen = SETTINGS["prefix_cache_dir"].parse(given)  # type: ignore[assignment]
    folder = prefixes_folder() if chosen in (None, AUTO) else Path(chosen)
    try:
        prompts, learned = _find(folder, _PROMPTS), _find(folder, _LEARNED)
    except OSError as fault:
        raise FailedError(f"cannot read {folder}: {fault.strerror}") from fault
    if not arguments.empty:
        rows = [
            ("folder", str(folder)),
            ("prompts", f"{format_bytes(sum(prompts.values()))} in {len(prompts)} files"),
            ("learned for drafts", f"{format_bytes(sum(learned.values()))} in {len(learned)} files"),
        ]
        print_table(rows)
        return 0
    found = prompts | learned
    for path in found:
        try:
            path.unlink(missing_ok=True)
        except OSError as fault:
            raise FailedError(f"cannot delete {path}: {fault.strerror}") from fault
    print(f"deleted {len(found)} files ({format_bytes(sum(found.values()))}) from {folder}")
    return 0


def _find(folder: Path, names: re.Pattern[str]) -> dict[Path, int]:
    """Return the files with such names and their sizes in bytes, those of other ranks included."""
    found = {}
    for place in (folder, *folder.glob("rank-*-of-*")):
        # A folder or file that is gone, as a server may run.
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in place.iterdir():
                if names.fullmatch(path.name) and path.is_file():
                    with suppress(FileNotFoundError):
                        found[path] = path.stat().st_size
    return found
