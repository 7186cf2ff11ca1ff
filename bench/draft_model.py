"""The flags --draft-model and --draft-translation, and the settings that follow from them."""

import argparse
from typing import Any

from bench import argument_types
from config.settings import SETTINGS

_TRANSLATION = SETTINGS["draft_translation"]


def add_arguments(parser: argparse.ArgumentParser, use: str) -> None:
    """Add --draft-model and --draft-translation to the parser. use: help text of --draft-model."""
    add = parser.add_argument
    add("--draft-model", type=argument_types.model_folder, metavar="DIR", help=use)
    add("--draft-translation", choices=_TRANSLATION.choices, default=_TRANSLATION.default,
        help="How drafts are converted if the draft model has another vocabulary: see "
        "`reprise serve --help`. Default: auto.")  # fmt: skip


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings for these flags, as keyword arguments of Settings."""
    folder = arguments.draft_model
    return {
        "draft_model": str(folder) if folder else None,
        "draft_translation": arguments.draft_translation,
    }
