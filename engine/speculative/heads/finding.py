"""Find the head that drafts from a model's hidden states: the one in the settings, or the model's own."""

import logging
from dataclasses import replace
from pathlib import Path

from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.loading import LoadedModel
from reprise.engine.speculative.heads.dflash import DFlashHead
from reprise.engine.speculative.heads.formats import (
    NAMES,
    FoundHead,
    find_folder,
    find_own_heads,
    identify,
    read_config,
)
from reprise.engine.speculative.heads.head import find_ends
from reprise.engine.speculative.heads.head_drafter import NamedHead
from reprise.engine.speculative.heads.making import Target, choose, load_head
from reprise.engine.speculative.heads.mtp import MTPHead

log = logging.getLogger("reprise.engine")


def find_given_head(settings: Settings) -> FoundHead | None:
    """Return the head in the folder of --draft-model; None if that holds an ordinary model, or is not set.

    Raises ModelError if the folder holds a head that is not supported, or cannot be read.
    """
    folder = Path(settings.draft_model) if settings.draft_model else None
    return identify(folder) if folder and (folder / "config.json").is_file() else None


def find_head(settings: Settings, given: FoundHead | None, loaded: LoadedModel) -> NamedHead | None:
    """Return the head that drafts for a model; None if it has none, or the settings do without.

    given: the head of --draft-model, which takes precedence over the model's own.
    Raises ModelError if the settings name a head that the model does not have, or that does not fit.
    """
    asked = next((kind for kind in NAMES if kind == settings.draft_type), None)
    if given is not None:
        if settings.draft_type not in ("auto", given.kind):
            raise ModelError(
                f"--draft-type {settings.draft_type}: {settings.draft_model} is a {NAMES[given.kind]}; "
                f"use --draft-type {given.kind}, or leave --draft-model out"
            )
        return _load(settings, given, loaded)
    if settings.dflash_window:
        raise ModelError("--dflash-window is for DFlash drafters; name the folder of one with --draft-model")
    if asked and settings.draft_model:
        raise ModelError(
            f"--draft-type {asked}: {settings.draft_model} is a draft model; leave it out, or name "
            "a folder with a head"
        )
    if settings.draft_type not in ("auto", *NAMES) or settings.draft_model or loaded.info.mask_token_id:
        return None
    try:
        found = _own_head(settings)
        if found is not None and asked in (None, found.kind):
            return _load(settings, found, loaded)
    except ModelError as fault:
        if asked:
            raise
        log.warning("%s; it drafts nothing", fault)
        loaded.info = replace(loaded.info, head_fault=str(fault))
        return None
    if asked:
        raise ModelError(
            f"--draft-type {asked}: {loaded.info.name} has no {NAMES[asked]}; name the folder of one with "
            "--draft-model, or use --draft-type auto"
        )
    return None


def _own_head(settings: Settings) -> FoundHead | None:
    folder = find_folder(settings.model_source)
    return choose(find_own_heads(folder, read_config(folder)))


def _load(settings: Settings, found: FoundHead, loaded: LoadedModel) -> NamedHead:
    info, config = loaded.info, read_config(find_folder(settings.model_source))
    if info.mask_token_id is not None:
        raise ModelError(f"{info.name} drafts for itself; start without --draft-model {found.source}")
    try:
        ends = find_ends(loaded.model)
    except ValueError as fault:
        raise ModelError(f"no head can draft for {info.name}: {fault}") from fault
    target = Target(info.name, config, info.num_layers, info.vocab_size, ends)
    head = load_head(found, target, settings.num_draft_tokens)
    if settings.dflash_window:
        _set_bounds(head, found, settings.dflash_sink, settings.dflash_window)
    return NamedHead(head, found.kind)


def _set_bounds(head: MTPHead | DFlashHead, found: FoundHead, sink: int, window: int) -> None:
    if not isinstance(head, DFlashHead):
        raise ModelError(f"--dflash-window is for DFlash drafters; {found.source} is an {NAMES[found.kind]}")
    try:
        head.set_bounds(sink, window)
    except ValueError as fault:
        raise ModelError(f"--dflash-window: {found.source} cannot have it: {fault}; leave it out") from fault
