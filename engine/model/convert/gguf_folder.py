"""Write the folder of a model, as mlx-lm loads it, from a GGUF file."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx

from reprise.engine.model.convert.gguf_architectures import make_config
from reprise.engine.model.convert.gguf_file import GgufFile
from reprise.engine.model.convert.gguf_tokenizer import find_token_ids, make_tokenizer, make_tokenizer_config
from reprise.engine.model.convert.gguf_weights import (
    FLOATS,
    Weight,
    convert_weight,
    find_dtype,
    plan_weights,
    quantization_of,
)
from reprise.engine.model.convert.options import DType, Options, Report
from reprise.engine.model.weights_here import DEQUANTISED_FROM

_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
"""A name without a dot: that of a template, once the beginning is gone, and a file's for any system."""

SHARD_BYTES = 4 << 30
"""Bytes of weights that are in memory at a time, and in one file."""


def bytes_needed(gguf: GgufFile, options: Options) -> int:
    """Return the bytes that the weights will take on disk. Raises ConvertError."""
    weights = plan_weights(gguf, options)
    dtype = find_dtype(weights, options)
    return sum(weight.num_bytes(dtype) for weight in weights)


def main_quantisation(gguf: GgufFile) -> str | None:
    """Return the name of the type in which most numbers are quantised, such as "Q4_1"; None if none are."""
    sizes: Counter[str] = Counter()
    for tensor in gguf.tensors:
        if tensor.tensor_type not in FLOATS:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    return max(sizes, key=lambda kind: sizes[kind], default=None)


def write_folder(gguf: GgufFile, folder: Path, options: Options, report: Report) -> None:
    """Write a model's configuration, tokenizer and weights into an empty folder.

    Raises OSError, or ConvertError, before the first weight is written, if the model cannot be converted.
    """
    weights = plan_weights(gguf, options)
    dtype = find_dtype(weights, options)
    tokenizer = make_tokenizer(gguf)
    paths = {weight.path: weight for weight in weights}
    vocab_size = int(paths["model.embed_tokens"].tensor.shape[1])
    ids = find_token_ids(gguf)
    config = make_config(gguf, "lm_head" not in paths, vocab_size) | ids | {"torch_dtype": dtype}
    if quantization := quantization_of(weights):
        # transformers reads the second name, mlx-lm both.
        config |= {"quantization": quantization, "quantization_config": quantization}
    if options.dequantize and (kind := main_quantisation(gguf)):
        config[DEQUANTISED_FROM] = kind
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ids | dict(options.sampling))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", make_tokenizer_config(gguf))
    _write_templates(folder, gguf)
    write_shards(folder, _read(gguf, weights, dtype, report))


def _write_templates(folder: Path, gguf: GgufFile) -> None:
    """Write a file's chat template, and named ones, such as tool_use, where transformers looks for them."""
    if template := gguf.fields.get(_TEMPLATE):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    named = {name.removeprefix(f"{_TEMPLATE}."): text for name, text in gguf.fields.items()}
    # Without one that has no name, none of them is the default.
    for name, text in named.items() if template else ():
        if _TEMPLATE_NAME.fullmatch(name) and isinstance(text, str):
            place = folder / "additional_chat_templates"
            place.mkdir(exist_ok=True)
            (place / f"{name}.jinja").write_text(text, encoding="utf-8")


def _read(
    gguf: GgufFile, weights: list[Weight], dtype: DType, report: Report
) -> Iterator[tuple[str, mx.array]]:
    total = sum(int(weight.tensor.n_bytes) for weight in weights)
    done = 0
    report(done, total)
    for weight in weights:
        for name, array in convert_weight(gguf, weight, dtype):
            mx.eval(array)
            yield name, array
        done += int(weight.tensor.n_bytes)
        report(done, total)


def write_shards(folder: Path, arrays: Iterator[tuple[str, mx.array]]) -> None:
    """Write weights by name into files of about SHARD_BYTES, with an index if there are several."""
    shards: list[list[str]] = []
    shard: dict[str, mx.array] = {}
    total = num_written = 0

    def flush() -> None:
        shards.append(list(shard))
        mx.save_safetensors(
            str(folder / f"part-{len(shards)}.safetensors"), shard, metadata={"format": "mlx"}
        )
        shard.clear()

    for name, array in arrays:
        shard[name] = array
        total += array.nbytes
        if total - num_written >= SHARD_BYTES:
            flush()
            num_written = total
    if shard:
        flush()
    if len(shards) == 1:
        (folder / "part-1.safetensors").rename(folder / "model.safetensors")
        return
    files = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / f"part-{number}.safetensors").rename(folder / file)
        files.update(dict.fromkeys(names, file))
    _write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files}
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
