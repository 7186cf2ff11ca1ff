"""Find the folder of a model by what the user calls it: a path, or a name on the hub."""

import logging
from pathlib import Path

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import Progress

log = logging.getLogger("reprise.engine")


def find_folder(source: str, progress: Progress | None = None) -> Path:
    """Return the folder of a model: the source itself, or the hub cache's for a name, downloaded if need be.

    progress: called with the downloaded share of the bytes. Raises ModelError.
    """
    folder = Path(source)
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise not_a_model(folder)
        return folder
    # Names on the hub have one slash at most, in the middle.
    if source.startswith((".", "~", "/")) or source.endswith("/") or source.count("/") > 1:
        raise ModelError(f"there is no model folder {source}")
    # Whoever serves a folder needs no hub.
    from reprise.engine.model.hub import HubCache, HubError, pull

    try:
        found = HubCache().find(source)
        if found is None or found.fault:
            log.info("downloading the model %s", source)
            found = pull(source, lambda done, total: progress(done / total) if progress else None)
    except HubError as fault:
        raise ModelError(f"cannot load the model {source}, which is no folder here: {fault}") from fault
    return found.path


def find_downloaded(source: str) -> Path:
    """Return the folder of a model, given its path or its name in the hub's cache, without downloads.

    Raises ModelError.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if not folder.is_absolute() and not source.startswith("."):
        from huggingface_hub import snapshot_download

        from reprise.engine.model.hub import NEEDED_FILES

        try:
            patterns = list(NEEDED_FILES)
            return Path(snapshot_download(source, local_files_only=True, allow_patterns=patterns))
        except Exception as fault:
            raise ModelError(
                f"there is no folder {source}, and no model of this name has been downloaded; "
                f"`reprise pull {source}` downloads one from the hub"
            ) from fault
    raise not_a_model(folder) if folder.is_file() else ModelError(f"there is no model folder {source}")


def not_a_model(path: Path) -> ModelError:
    """Return the error for a folder that holds no model, with the way out."""
    told = f"{path} is not a model folder"
    if path.is_file():
        return ModelError(f"{told}; `reprise convert {path} FOLDER` makes one of a GGUF file")
    told += ": it has no config.json"
    if held := sorted(path.glob("*.gguf")):
        told += f"; the GGUF file in it can be served: --model {held[0]}"
    elif held := [*sorted(path.glob("*/config.json")), *sorted(path.glob("*/*/config.json"))]:
        told += f"; it holds models: serve one, as with --model {held[0].parent}, or all of them with "
        told += f"--models-dir {path}"
    return ModelError(told)
