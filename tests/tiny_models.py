"""Random models of every architecture in mlx-lm, with its own code: tiny, or larger and on disk."""

import importlib
import inspect
import json
import pkgutil
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _by_name(table: str) -> dict[str, Any]:
    return {name: value for value, names in _TABLES[table] for name in names.split()}


# TOML has no null.
TINY: dict[str, Any] = {"rope_scaling": None} | _by_name("fields")
"""A value for every field of a configuration, by its name. Architectures take those that they know."""

MIXER_OUTPUTS = (".o_proj.weight", ".out_proj.weight")
"""How the names of the output projections of attention, recurrent layers and convolutions end."""

# SILENT is far below the epsilon of a norm that follows, as in Gemma 3, which would scale it up again.
SILENT, UNLIKELY, LIKELY_EVERY = 1e-9, 0.1, 16
BARE_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

DROPS_THOUGHTS = """{%- set last = namespace(user=0) %}
{%- for one in messages if one.role == 'user' %}{% set last.user = messages.index(one) %}{% endfor %}
{%- for one in messages %}
    {{- '<|im_start|>' + one.role + '\\n' }}
    {%- if one.reasoning_content and (preserve_thinking is true or loop.index0 > last.user) %}
        {{- '<think>' + one.reasoning_content + '</think>' }}
    {%- endif %}
    {{- (one.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Drops the thoughts of earlier turns, unless told otherwise."""


def architectures() -> list[str]:
    """Return the names of all architectures in the installed mlx-lm: its modules with a Model and ModelArgs.

    A module that cannot be imported is listed too; making its model then raises the reason.
    """
    names = []
    for info in pkgutil.iter_modules(mlx_lm.models.__path__):
        # A module whose requirements are not installed may end the process.
        with suppress(Exception, SystemExit):
            module = _module(info.name)
            if not hasattr(module, "Model") or not hasattr(module, "ModelArgs"):
                continue
        names.append(info.name)
    return sorted(names)


def _module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.models.{name}")


def tiny_config(name: str, **changes: Any) -> dict[str, Any]:
    """Return a tiny configuration of an architecture. changes: entries to replace."""
    known = inspect.signature(_module(name).ModelArgs).parameters
    every = dict(TINY)
    for names, own in _TABLES["changes"].items():
        every |= own if name in names.split() else {}
    every |= changes | {"model_type": name}
    config = {key: value for key, value in every.items() if key in known}
    # The fields of a text part are not known here; it ignores those that it does not have.
    text = {"text_config": every | {"model_type": _TABLES["text_types"].get(name, name)}}
    return config | text if "text_config" in known else config


def make_model(config: dict[str, Any], dtype: mx.Dtype = mx.float32) -> Any:
    """Make a random model from a configuration, with weights so large that logits lie far apart."""
    module = _module(config["model_type"])
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(config))
    flat: Any = tree_flatten(model.parameters())
    weights = [
        (key, (mx.random.normal(one.shape) * 0.3 if one.ndim > 1 else one).astype(dtype))
        for key, one in flat
        if mx.issubdtype(one.dtype, mx.floating)
    ]
    model.load_weights(weights, strict=False)
    model.eval()
    mx.eval(model.parameters())
    return model


def write_random_model(name: str, folder: Path, is_repetitive: bool = False) -> Path:
    """Write a random model with the bundled tokenizer into a new folder; return the folder.

    name: an architecture of mlx-lm. Raises ImportError if mlx-lm has no such architecture.
    is_repetitive: change the weights by make_repetitive(). The chat template then writes the bare messages,
    so that the last token, which decides the answer, differs by prompt.
    """
    config = tiny_config(name, **_by_name("larger") | _TABLES["larger_changes"].get(name, {}))
    weights = dict(tree_flatten(make_model(config).parameters()))
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED_MODEL / file, folder)
    if is_repetitive:
        weights = make_repetitive(weights)
        (folder / "chat_template.jinja").write_text(BARE_TEMPLATE, encoding="utf-8")
    # As in most checkpoints; but MLX's CPU backend multiplies experts in float32 only.
    if not any("experts" in key or "switch_mlp" in key for key in weights):
        weights = {key: array.astype(mx.bfloat16) for key, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def make_repetitive(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return weights of the same shapes with which greedy answers soon enter a cycle.

    Token mixers, such as attention, still compute everything but add almost nothing to the residual stream.
    So each token depends only on the one before it, and every path ends in a cycle: sooner if fewer tokens
    are ever chosen, here one of LIKELY_EVERY.
    Raises ValueError if no name of a weight ends as one of MIXER_OUTPUTS does.
    """
    silent = {key: array * SILENT for key, array in weights.items() if key.endswith(MIXER_OUTPUTS)}
    if not silent:
        raise ValueError(f"no weights end in {' or '.join(MIXER_OUTPUTS)}")
    ends = ("lm_head.weight", "model.embed_tokens.weight")
    output = next(key for end in ends for key in weights if key.endswith(end))
    is_likely = mx.arange(len(weights[output]))[:, None] % LIKELY_EVERY == LIKELY_EVERY - 1
    return {**weights, **silent, output: mx.where(is_likely, weights[output], weights[output] * UNLIKELY)}
