"""Load a model folder with mlx-lm, on the engine's thread, which owns every array."""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.utils import get_total_parameters, load_adapters, load_config
from mlx_lm.utils import load_model as load_model_of
from mlx_lm.utils import load_tokenizer as load_wrapped

from reprise.config.settings import Settings, cache_folder
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import ModelInfo, Progress
from reprise.engine.kv_cache.per_row import keeps_all_tokens, leaves, make_caches
from reprise.engine.kv_cache.probes import find_sharing, prefix_fault, rollback_fault
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.model import wedlm
from reprise.engine.model.architectures import classes_without_heads
from reprise.engine.model.capabilities import Findings
from reprise.engine.model.device import device_memory_bytes, device_name, quantised_steps_gain
from reprise.engine.model.files.folder_reader import check_files
from reprise.engine.model.files.image_processor import read_processor, read_vision
from reprise.engine.model.files.model_folder import (
    check_loadable,
    find_context_tokens,
    read_answer_limits,
    read_sampling_defaults,
)
from reprise.engine.model.hub import find_folder
from reprise.engine.text.detokenizer import Detokenizer
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.text.tokenizer_reading import read_once
from reprise.engine.vision.image_features import Sight, find_tower


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    trusts_code: run Python code that comes with the model, if the model requires it.
    cache_folder: keeps tables of tokens, and findings about the model, between starts.
    chat_template: replaces the model's own. template_arguments: see Tokenizer.
    adapter: the folder of a LoRA adapter. sees: also load the model's vision tower, if that is supported.
    """

    trusts_code: bool = False
    cache_folder: Path | None = None
    chat_template: str | None = None
    template_arguments: Mapping[str, Any] | None = None
    adapter: str | None = None
    sees: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "LoadOptions":
        """Return the options that the settings set for every model: trusts_code and cache_folder."""
        return cls(settings.trust_remote_code, cache_folder() if settings.keeps_costs else None)


NO_OPTIONS = LoadOptions()


DEQUANTISED_FROM = "dequantised_from"
"""Key in config.json: the type in a GGUF file that a conversion undid for the sake of drafts."""

_COST = "with quantised weights MLX's CPU build takes as long for a step of n tokens as for n steps"
_SLOW = "; with scales of {} each step takes many times as long as with float32"
_WAY_OUT = "; in bfloat16 they can: `reprise convert MODEL DIR --dequantize --dtype bfloat16`"


def describe_weights(config: Mapping[str, Any], scales: str) -> str:
    """Describe how the weights' format affects drafting on this device; "" if it does not.

    config: of config.json. scales: the type of most numbers that are not quantised, such as "float32".
    """
    if config.get("quantization") or config.get("quantization_config"):
        if quantised_steps_gain():
            return ""
        slow = "" if scales == "float32" else _SLOW.format(scales)
        return f"{_COST}, so drafts cannot pay here{slow}{_WAY_OUT}"
    kind = config.get(DEQUANTISED_FROM)
    if not isinstance(kind, str):
        return ""
    return f"dequantised from {kind}" + ("" if quantised_steps_gain() else f": {_COST}, and no draft pays")


log = logging.getLogger("reprise.engine")

DEFAULT_CONTEXT_TOKENS = 4096
"""Context of a model whose configuration names none, if a layer keeps all tokens."""

RECURRENT_CONTEXT_TOKENS = 131_072
"""The same if no layer keeps all tokens: neither memory nor the time of a step grows with the text.

The limit only ends what would have no end: an answer without max_tokens that repeats itself, or a prompt that
takes the device for many minutes.
"""

NUMBERS_PER_ARRAY = 16
"""Numbers of each array that go into the fingerprint."""


@dataclass
class LoadedModel:
    """A model, its tokenizer, its public description, and the findings about it.

    room_bytes: memory besides weights, limited by the other machines; None for one machine.
    sight: the model's tower and language model, if it takes images; else None.
    """

    model: Any
    tokenizer: Tokenizer
    info: ModelInfo
    findings: Findings = field(default_factory=Findings)
    room_bytes: int | None = None
    sight: Sight | None = None

    @property
    def _watched(self) -> Any:
        """The model, whose forward passes the findings count while it is tried."""
        # Functions for models split over machines dispatch on this type.
        return self.findings.watch(self.model) if isinstance(self.model, Module) else self.model

    def find_sharing(self, kv_bits: int | None = None) -> Sharing:
        """Find out which parts of a forward pass rows of different lengths can share; see probes.py."""
        return self.findings.find(
            f"sharing, {kv_bits} bits",
            lambda: find_sharing(self._watched, kv_bits),
            lambda sharing: sharing >= Sharing.LAYERS,
            int,
            Sharing,
            meanwhile=lambda: Sharing.NOTHING,
        )

    def rollback_fault(self, kv_bits: int | None, sharing: Sharing) -> str | None:
        """Explain why the model's caches cannot be rolled back; None if they can. See probes.py."""
        try_it = partial(rollback_fault, self._watched, kv_bits, sharing)
        return self.findings.find_fault(f"rollback, {kv_bits} bits, {sharing.name}", try_it)

    def prefix_fault(self, kv_bits: int | None = None) -> str | None:
        """Explain why the model's caches cannot be cut into prefixes; None if they can. See probes.py."""
        try_it = partial(prefix_fault, self._watched, kv_bits)
        return self.findings.find_fault(f"prefix, {kv_bits} bits", try_it)


Split = Callable[[Any], None]
"""Reduces a model, before its weights are read, to this process's part."""

Load = Callable[[Progress | None], LoadedModel]
"""Loads the model; the engine calls it on its own thread."""


def make_loader(settings: Settings, name: str | None = None, split: Split | None = None) -> Load:
    """Return a function that loads the model named by the settings, for the engine's thread to call.

    name: the model's name for clients; by default the settings' own.
    """
    options = replace(
        LoadOptions.of(settings),
        chat_template=read_template(settings.chat_template),
        template_arguments=settings.chat_template_kwargs,
        adapter=settings.adapter_path,
        sees=settings.max_images > 0 and split is None,
    )
    named = settings.model_source, name or settings.model_name, settings.max_context_tokens
    return partial(load_model, *named, options=options, split=split)


def make_draft_loader(settings: Settings) -> Load | None:
    """Return a function that loads the draft model; None if the settings name none."""
    if settings.draft_model is None:
        return None
    name = settings.draft_model
    return partial(load_model, name, name, None, options=LoadOptions.of(settings))


def read_template(file: str | None) -> str | None:
    """Read a chat template's file; None if file is None. Raises ModelError if it cannot be read."""
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as fault:
        raise ModelError(f"cannot read the chat template {file}: {fault}") from fault


def load_model(
    source: str,
    name: str,
    max_context_tokens: int | None,
    progress: Progress | None = None,
    *,
    options: LoadOptions = NO_OPTIONS,
    split: Split | None = None,
) -> LoadedModel:
    """Load a model folder (config.json, model*.safetensors, tokenizer), or a name on the model hub.

    A model that is not in the hub's cache is downloaded, as `reprise pull` does.

    split: leaves this machine's part of the model. Raises ModelError if mlx-lm cannot load it.
    """
    start = time.perf_counter()
    check_adapter(options.adapter)
    folder = find_folder(source, progress)
    if progress:
        # Building the model and its tokenizer can take long, before any weight is read.
        progress(0.0)
    try:
        check_loadable(folder)
        loaded: Any = load_model_of(
            folder,
            lazy=True,
            get_model_classes=classes_without_heads,
            trust_remote_code=options.trusts_code,
        )
        model, config = loaded
        if options.adapter is not None:
            model = load_adapters(model, options.adapter)
        # Without this setting, transformers asks at the terminal.
        extra: dict[str, Any] = {"trust_remote_code": options.trusts_code}
        if options.chat_template is not None:
            extra["chat_template"] = options.chat_template
        wrapped, digest = _load_tokenizer(folder, extra, config)
    # Model code and weights may raise anything.
    except Exception as fault:
        if not options.trusts_code and "trust_remote_code" in str(fault):
            raise ModelError(
                f"the model {source} requires running Python code that comes with it; start with "
                "--trust-remote-code if you trust its author"
            ) from fault
        raise ModelError(f"cannot load the model {source}: {fault}") from fault
    if split:
        split(model)
    read_all(model, progress)
    model.eval()
    try:
        # From the logits, since the configuration may differ; reading their shape computes nothing.
        vocab_size = int(model(mx.array([[0]])).shape[-1])
        tokenizer = Tokenizer(wrapped, vocab_size, options.cache_folder, digest, options.template_arguments)
        Detokenizer(tokenizer, []).add(0)
    except Exception as fault:
        raise ModelError(f"the model {source} is loaded but cannot be used: {fault}") from fault
    info = describe(model, config, name, vocab_size, max_context_tokens, time.perf_counter() - start)
    limits = read_answer_limits(folder)
    info = replace(info, sampling_defaults=read_sampling_defaults(folder), answer_limits=limits)
    # Code that comes with the model may change while its configuration stays.
    findings = Findings.of(info, None if config.get("model_file") else options.cache_folder)
    loaded = LoadedModel(model, tokenizer, info, findings)
    return _let_see(loaded, config, folder, progress) if options.sees else loaded


def _let_see(
    loaded: LoadedModel, config: dict[str, Any], folder: Path, progress: Progress | None
) -> LoadedModel:
    """Read the weights of a model's vision tower, if it has one."""
    tower = find_tower(config, folder, read_processor(folder))
    vision = read_vision(config, folder, loaded.tokenizer.backend) if tower else None
    if vision and tower:
        for array in tower.arrays():
            mx.eval(array)
            if progress:
                progress(1.0)
        loaded.sight = Sight(loaded.model, tower)
        weight_bytes = loaded.info.weight_bytes + tower.nbytes
        loaded.info = replace(loaded.info, vision=vision, weight_bytes=weight_bytes)
    return loaded


def check_adapter(path: str | None) -> None:
    """Raise ModelError if there is no LoRA adapter at a path; None for no path."""
    if path is None:
        return
    if not (Path(path) / "adapter_config.json").is_file():
        raise ModelError(f"--adapter-path {path}: there is no adapter_config.json")
    check_files(Path(path))


def describe(
    model: Any,
    config: dict[str, Any],
    name: str,
    vocab_size: int,
    max_context_tokens: int | None,
    loaded_s: float,
) -> ModelInfo:
    """Describe a model from its configuration and weights.

    max_context_tokens: lowers the context that the configuration names, or sets it if it names none.
    """
    context_tokens = find_context_tokens(config)
    if context_tokens is None:
        context_tokens = max_context_tokens or _default_context_tokens(model, name)
    weights = _arrays(model)
    quantization = config.get("quantization")
    return ModelInfo(
        name=name,
        architecture=str(config.get("model_type", "unknown")),
        context_tokens=min(context_tokens, max_context_tokens or context_tokens),
        vocab_size=vocab_size,
        num_layers=len(model.layers),
        num_parameters=int(get_total_parameters(model)),
        weight_bytes=sum(array.nbytes for array in weights),
        dtype=f"{quantization['bits']}-bit"
        if quantization
        else str(weights[0].dtype).removeprefix("mlx.core."),
        device=device_name(),
        memory_bytes=int(device_memory_bytes()),
        loaded_s=loaded_s,
        fingerprint=find_fingerprint(model, config),
        mask_token_id=model.args.mask_token_id if config.get("model_type") == wedlm.MODEL_TYPE else None,
        weights_note=describe_weights(config, _main_dtype(weights)),
    )


def find_fingerprint(model: Any, config: dict[str, Any]) -> str:
    """Return a digest of the configuration and of a few numbers of every array.

    They suffice: training changes nearly all numbers of the arrays that it touches.
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(mx.__version__.encode())  # type: ignore[attr-defined]
    flat: Any = tree_flatten(model.parameters())
    samples = []
    for name, array in sorted(flat):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        places = [i * (array.size - 1) // (NUMBERS_PER_ARRAY - 1) for i in range(NUMBERS_PER_ARRAY)]
        samples.append(array.reshape(-1)[mx.array(places, mx.int64)].astype(mx.float32))
    digest.update(np.array(mx.concatenate(samples)).tobytes())
    return digest.hexdigest()[:32]


def _main_dtype(weights: list[mx.array]) -> str:
    """Return the type of most numbers that are not quantised; "" if all are."""
    sizes: Counter[str] = Counter()
    for array in weights:
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[str(array.dtype).removeprefix("mlx.core.")] += array.size
    return max(sizes, key=lambda dtype: sizes[dtype], default="")


def _arrays(model: Any) -> list[mx.array]:
    flat: Any = tree_flatten(model.parameters())
    return [array for _, array in flat]


def read_all(model: Any, progress: Progress | None) -> None:
    """Read a model's weights array by array."""
    weights, done = _arrays(model), 0
    total = sum(array.nbytes for array in weights)
    for array in weights:
        mx.eval(array)
        done += array.nbytes
        if progress:
            progress(done / total)


def _default_context_tokens(model: Any, name: str) -> int:
    grows = any(map(keeps_all_tokens, leaves(make_caches(model))))
    num_tokens = DEFAULT_CONTEXT_TOKENS if grows else RECURRENT_CONTEXT_TOKENS
    log.warning(
        "the configuration of %s names no context: it takes %d tokens (--max-context-tokens sets another "
        "limit for the served model)",
        name, num_tokens,
    )  # fmt: skip
    return num_tokens


def load_tokenizer(folder: Path, chat_template: str | None = None) -> Tokenizer:
    """Load the tokenizer of a model folder. chat_template: replaces the model's own."""
    config = load_config(folder)
    extra = {} if chat_template is None else {"chat_template": chat_template}
    wrapped, _ = _load_tokenizer(folder, extra, config)
    text = config.get("text_config") or config
    return Tokenizer(wrapped, int(text.get("vocab_size") or len(wrapped.get_vocab())))


def _load_tokenizer(folder: Path, extra: dict[str, Any], config: Mapping[str, Any]) -> tuple[Any, str]:
    """Return mlx-lm's tokenizer and a digest; see read_once(). extra: settings in place of its own."""
    return read_once(partial(load_wrapped, folder, extra, eos_token_ids=config.get("eos_token_id")))
