"""Convert models that mlx-lm can load, as its own commands convert and fuse do."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_unflatten
from mlx_lm.utils import dequantize_model, quantize_model, save

from reprise.engine.model.convert.gguf_file import first_line
from reprise.engine.model.convert.gguf_folder import write_shards
from reprise.engine.model.convert.options import ConvertError, Options, Report


def write_folder(source: Path, folder: Path, options: Options, report: Report) -> None:
    """Load a model from a source folder, fuse the adapter, change types, quantise, and write the new folder.

    folder: must not exist yet. report: called with the bytes written. Raises ConvertError.
    """
    try:
        # mlx-lm reports to standard output, where only the folder's name belongs.
        with contextlib.redirect_stdout(io.StringIO()):
            model, tokenizer, config = _prepare(source, options)
    except ConvertError:
        raise
    # Model code and weights may raise anything.
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno:
            raise
        reason = f"mlx-lm cannot convert {source}: {first_line(fault)}"
        raise ConvertError(f"{reason}; look for it in MLX's format") from fault
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    # Each array is freed once it is written.
    model.update(tree_map(lambda _: mx.array([]), model.parameters()))
    with contextlib.redirect_stdout(io.StringIO()):
        save(folder, source, model, tokenizer, config)
    for file in ("model.safetensors", "model.safetensors.index.json"):
        (folder / file).unlink()
    write_shards(folder, _take(arrays, report))


def _take(arrays: dict[str, mx.array], report: Report) -> Iterator[tuple[str, mx.array]]:
    """Yield computed arrays by name, and remove each from the dictionary."""
    total, done = sum(array.nbytes for array in arrays.values()), 0
    report(done, total)
    for name in tuple(arrays):
        array = arrays.pop(name)
        mx.eval(array)
        done += array.nbytes
        yield name, array
        report(done, total)


def _prepare(source: Path, options: Options) -> tuple[Any, Any, dict[str, Any]]:
    """Return model, tokenizer and configuration as they are to be written; no weights are read yet."""
    loaded: Any = mlx_lm.load(str(source), adapter_path=options.adapter, lazy=True, return_config=True)
    model, tokenizer, config = loaded
    fused = [
        (name, module.fuse(dequantize=options.dequantize))
        for name, module in model.named_modules()
        if hasattr(module, "fuse")
    ]
    if fused:
        model.update_modules(tree_unflatten(fused))
    if options.dequantize:
        model = dequantize_model(model)
        config.pop("quantization", None)
        config.pop("quantization_config", None)
    if options.bits and "quantization" in config:
        bits = config["quantization"]["bits"]
        raise ConvertError(
            f"{source} is quantised already, to {bits} bits; convert the original, or leave out --bits"
        )
    if options.dtype:
        _cast(model, getattr(mx, options.dtype))
        config["torch_dtype"] = options.dtype
    if options.bits:
        model, config = quantize_model(model, config, options.group_size, options.bits)
    return model, tokenizer, config


def _cast(model: Any, dtype: mx.Dtype) -> None:
    is_cast = getattr(model, "cast_predicate", lambda _: True)

    def cast(name: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if is_cast(name) and mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map_with_path(cast, model.parameters()))
