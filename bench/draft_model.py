"""The flags that name a draft model, and the settings that they make."""

import argparse
from typing import Any

from bench import argument_types
from config.settings import SETTINGS

_TRANSLATION = SETTINGS["draft_translation"]


def add_arguments(parser: argparse.ArgumentParser, use: str) -> None:
    """Give the parser --draft-model and --draft-translation. use: what the draft model is for."""
    add = parser.add_argument
    add("--draft-model", type=argument_types.model_folder, metavar="DIR", help=use)
    add("--draft-translation", choices=_TRANSLATION.choices, default=_TRANSLATION.default,
        help="How its drafts get into the vocabulary of the model, if it has another one: see "
        "`reprise serve --help`. Default: auto.")  # fmt: skip


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the flags stand for, as arguments of Settings."""
    folder = arguments.draft_model
    return {
        "draft_model": str(folder) if folder else None,
        "draft_translation": arguments.draft_translation,
    }
