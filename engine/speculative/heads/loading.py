"""Make heads from configurations and from weights named like the modules."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import Progress
from reprise.engine.model.hub import find_downloaded, find_folder
from reprise.engine.model.loading import LoadedModel
from reprise.engine.speculative.heads.dflash import DFlashHead
from reprise.engine.speculative.heads.formats import (
    NAMES,
    FoundHead,
    find_own_heads,
    identify,
    read_config,
)
from reprise.engine.speculative.heads.head import (
    HeadModule,
    MisfitError,
    Shape,
    Target,
    find_ends,
    text_config,
)
from reprise.engine.speculative.heads.head_drafter import NamedHead
from reprise.engine.speculative.heads.mtp import FAMILIES, MTPHead

Weights = Mapping[str, mx.array]
"""Arrays by the names of their places in a module."""

_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
"""Exceptions of a configuration that lacks an entry, or has one of another type."""


def load_head(found: FoundHead, target: Target, max_drafted: int) -> HeadModule:
    """Load a head and evaluate its arrays.

    max_drafted: maximum tokens of a draft of an MTP head.
    Raises ModelError if the head does not fit the target, or its arrays do not fit its configuration.
    """
    head = make_head(found, target, max_drafted)
    fill(found.source, head, read_weights(found))
    mx.eval(head.parameters())
    return head


def make_head(found: FoundHead, target: Target, max_drafted: int) -> HeadModule:
    """Make a head with random weights. Raises ModelError if its configuration does not fit the target."""
    check_fit(found, target)
    try:
        if found.published is None:
            return MTPHead(FAMILIES[found.family], dict(found.config), target.ends, max_drafted)
        places = {place for names in found.names.values() for place in names.values()}
        return found.published.make(found.config, target, places)
    except MisfitError as fault:
        raise _misfit(found, target, str(fault)) from None
    except Exception as fault:
        why = f"cannot make a head from the configuration of {found.source}: {fault!r}"
        raise ModelError(why) from fault


def check_fit(found: FoundHead, target: Shape) -> None:
    """Raise ModelError if an MTP head's configuration does not fit the target's."""
    if found.published is not None:
        return
    if found.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelError(f"{found.source} has an MTP head of {found.family}; supported are those of {known}")
    of_target = text_config(target.config)
    wanted = {
        "hidden_size": (of_target.get("hidden_size"),),
        "vocab_size": (target.vocab_size, of_target.get("vocab_size")),
        # The head's configuration may be the target's, or describe nothing but the head.
        "num_hidden_layers": (target.num_layers, found.depth),
    }
    for key, due in wanted.items():
        if found.config.get(key, due[0]) not in due:
            raise _misfit(found, target, f"its {key} is {found.config[key]}, that of the model {due[0]}")


def _misfit(found: FoundHead, target: Shape, why: str) -> ModelError:
    return ModelError(
        f"the {found.name} in {found.source} does not fit {target.name}: {why}. "
        "Use one that was made for this model, or none"
    )


def choose(found: Sequence[FoundHead]) -> FoundHead | None:
    """Return the only head, None if there is none. Raises ModelError if there are several."""
    if len(found) > 1:
        several = " and ".join(f"the {one.name} in {one.source}" for one in found)
        raise ModelError(f"only one drafter can read a model's states, but there are {several}; keep one")
    return found[0] if found else None


def read_weights(found: FoundHead) -> dict[str, mx.array]:
    """Read a head's arrays by module path, converted as mlx-lm would."""
    weights: dict[str, mx.array] = {}
    for path, names in found.names.items():
        arrays: Any = mx.load(str(path))
        weights |= {own: arrays[name] for name, own in names.items() if own}
    if found.adds_one:
        weights = {name: array + 1.0 if array.ndim == 1 else array for name, array in weights.items()}
    try:
        if found.published:
            return found.published.convert(weights, found.config)
        return FAMILIES[found.family].convert(weights, found.config)
    except Exception as fault:
        raise ModelError(f"{found.source} has not all arrays of a head in a known form: {fault!r}") from fault


def fill(source: str, head: Module, weights: Weights) -> None:
    """Load weights into a head, keeping their quantization. Raises ModelError if they do not fit.

    source: the head's folder or file, for errors.
    """

    def quantization(path: str, module: Module) -> bool | dict[str, Any]:
        if f"{path}.scales" not in weights or not hasattr(module, "to_quantized"):
            return False
        found: dict[str, Any] = infer_quant_config(path, module, dict(weights))
        return found

    try:
        quantize(head, class_predicate=quantization)
    except (ValueError, ZeroDivisionError) as fault:
        raise ModelError(f"cannot read the quantization of {source}: {fault}") from fault
    wanted: Any = dict(tree_flatten(head.parameters()))
    if missing := sorted(wanted.keys() - weights.keys()):
        raise ModelError(f"{source} lacks {_few(missing)}: it is truncated, or of another kind of model")
    if strange := sorted(weights.keys() - wanted.keys()):
        raise ModelError(f"{source} has weights that no such head has: {_few(strange)}")
    for name, array in weights.items():
        if array.shape != wanted[name].shape:
            raise ModelError(
                f"{source} does not fit: {name} is {array.shape}, where {wanted[name].shape} is due"
            )
    head.load_weights(list(weights.items()))
    head.eval()


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


log = logging.getLogger("reprise.engine")


def find_given_head(settings: Settings, progress: Progress | None = None) -> FoundHead | None:
    """Return the head that --draft-model names; None if that is an ordinary model or not set.

    A name on the hub is downloaded if need be. Raises ModelError if there is no such folder, it holds a head
    that is not supported, or it cannot be read.
    """
    return identify(find_folder(settings.draft_model, progress)) if settings.draft_model else None


def find_head(settings: Settings, given: FoundHead | None, loaded: LoadedModel) -> NamedHead | None:
    """Return the head that drafts for a model; None if it has none or the settings disable it.

    given: the head of --draft-model, which takes precedence over the model's own.
    Raises ModelError if the settings name a head that the model does not have, or that does not fit.
    """
    asked = next((kind for kind in NAMES if kind == settings.draft_type), None)
    if given is not None:
        if settings.draft_type not in ("auto", given.draft_type):
            raise ModelError(
                f"--draft-type {settings.draft_type}: {settings.draft_model} is {given.described}; "
                f"use --draft-type {given.draft_type}, or leave --draft-model out"
            )
        return _load(settings, given, loaded, read_config(find_downloaded(settings.model_source)))
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
        folder = find_downloaded(settings.model_source)
        config = read_config(folder)
        found = choose(find_own_heads(folder, config))
        if found is not None and asked in (None, found.draft_type):
            return _load(settings, found, loaded, config)
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


def _load(settings: Settings, found: FoundHead, loaded: LoadedModel, config: dict[str, Any]) -> NamedHead:
    info = loaded.info
    if info.mask_token_id is not None:
        raise ModelError(f"{info.name} drafts for itself; start without --draft-model {found.source}")
    try:
        ends = find_ends(loaded.model)
    except ValueError as fault:
        raise ModelError(f"no head can draft for {info.name}: {fault}") from fault
    target = Target(info.name, config, info.num_layers, info.vocab_size, ends)
    head = load_head(found, target, settings.num_draft_tokens)
    if settings.dflash_window:
        _set_bounds(head, found, DFLASH_SINK, settings.dflash_window)
    return NamedHead(head, found.draft_type, found.described)


DFLASH_SINK = 64
"""Positions at the beginning of a text that a DFlash drafter keeps with a window: much attention falls on
these, whatever they hold."""


def _set_bounds(head: HeadModule, found: FoundHead, sink: int, window: int) -> None:
    if not isinstance(head, DFlashHead):
        raise ModelError(f"--dflash-window is for DFlash drafters; {found.source} is {found.described}")
    try:
        head.set_bounds(sink, window)
    except ValueError as fault:
        raise ModelError(f"--dflash-window: {found.source} cannot have it: {fault}; leave it out") from fault
