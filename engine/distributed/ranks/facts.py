"""Find and compare the facts that ranks must have in common before they compute together."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from reprise.config.settings import Settings
from reprise.config.version import VERSION
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.folder_reader import read_bytes
from reprise.engine.model.files.model_folder import describe_folder
from reprise.engine.model.loading import check_adapter

COMPARED = ("split", "split_layers", "kv_bits", "max_context_tokens", "trust_remote_code")
"""Settings that must be equal. The others matter on rank 0 only."""

SAMPLES, SAMPLE_BYTES = 64, 4096
"""How much of each file of weights goes into the digest. All of it would take minutes for a large model."""

Facts = Mapping[str, str]


def find_facts(settings: Settings) -> dict[str, str]:
    """Return the facts of this rank to compare with other ranks', by names for people.

    Raises ModelError if the model cannot be spread over several machines.
    """
    return {
        "version of Reprise": VERSION,
        "version of MLX": version("mlx"),
        "version of mlx-lm": version("mlx-lm"),
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        **{f"setting {name}": str(getattr(settings, name)) for name in COMPARED},
        "setting prefix_cache_dir": "none" if settings.prefix_cache_dir is None else "a folder",
        "adapter": _digest_adapter(settings.adapter_path),
        "model": digest_files(Path(settings.model_source)),
    }


def compare(ours: Facts, theirs: Facts, name: str) -> str | None:
    """Describe the first difference in a sentence; None if there is none. name: the other rank's."""
    for fact, value in ours.items():
        if theirs.get(fact) != value:
            other = theirs.get(fact)
            if fact == "model":
                return f"{name} has other files of the model than rank 0; copy the same folder to both"
            return f"{name} has another {fact} than rank 0: {other}, not {value}"
    return None


def digest_files(folder: Path) -> str:
    """Return a digest of a model's configuration and of samples of its weights. Raises ModelError."""
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"a model on several machines must be a folder, the same on each of them; {folder} is none"
        )
    files = sorted(folder.glob("model*.safetensors"))
    if len(files) > 1 and not (folder / "model.safetensors.index.json").is_file():
        raise ModelError(f"{folder} has {len(files)} files of weights, but no model.safetensors.index.json")
    return _digest(folder / "config.json", files)


def _digest_adapter(path: str | None) -> str:
    if path is None:
        return "none"
    check_adapter(path)
    folder = Path(path)
    return _digest(folder / "adapter_config.json", sorted(folder.glob("*.safetensors")))


def _digest(config: Path, files: Sequence[Path]) -> str:
    digest = hashlib.sha256(read_bytes(config))
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as weights:
            for sample in range(SAMPLES):
                weights.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def read_split_layers(text: str | None) -> Sequence[int] | None:
    """Parse --split-layers, such as `20,12`: the number of layers of each rank, rank 0 first.

    Raises ModelError if it is no such list.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ModelError(f"--split-layers {text}: it must be numbers such as 20,12") from None


REFUSED: Mapping[str, str] = {
    "wire_weights": "weights cannot be wired yet",
    "mask_token_id": "WeDLM models cannot be split",
}


def refuse_settings(settings: Settings) -> None:
    """Raise ModelError for settings that do not work where a model is on several machines."""
    for name, reason in REFUSED.items():
        if getattr(settings, name):
            flag = "--" + name.replace("_", "-")
            raise ModelError(f"{flag}: with a model on several machines {reason}; start without it")
    if settings.adapter_path is not None and settings.split == "tensor":
        raise ModelError("--adapter-path: an adapter cannot be split within layers; use --split pipeline")
    folder = describe_folder(Path(settings.model_source))
    if folder.purpose != "generate":
        raise ModelError(f"{settings.model_name} generates no text; serve it on one machine")
    if settings.max_images and folder.vision:
        raise ModelError(
            f"{settings.model_name} sees images, which a model on several machines cannot; start with "
            "--max-images 0 to serve it as a model that reads text, or serve it on one machine"
        )
    if settings.wedlm_decoding != "off":
        raise ModelError("--wedlm-decoding: WeDLM models cannot be split over several machines")
