"""List, find and remove models in the cache that huggingface_hub keeps, where mlx-lm looks for them too.

A model is whole if every file is there that mlx-lm needs, by the list of files that huggingface_hub stores
beside a snapshot, and by the model's own index of shards. Downloading is in hub_download.py.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from huggingface_hub import constants, scan_cache_dir, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.folder_reader import read_bytes
from reprise.engine.model.files.model_folder import ModelFolder, describe_folder

HubFault = Literal["name", "unknown", "gated", "offline", "space", "busy", "kind", "failed"]

NEEDED_FILES = tuple(DEFAULT_ALLOW_PATTERNS)
"""Patterns of the files that mlx-lm downloads, and of which a whole model consists."""

_PREFIX = "models--"


class HubError(Exception):
    """A model cannot be downloaded, found or removed; the message is one line that says why.

    kind: name (no name on the hub can look like this), unknown (no such model), gated, offline, space (the
    disk is full), busy (another process downloads it), kind (not a text model of mlx-lm), or failed.
    """

    def __init__(self, kind: HubFault, message: str) -> None:
        super().__init__(message)
        self.kind: HubFault = kind


@dataclass(frozen=True)
class HubCache:
    """The cache of a hub. folder: by default HF_HUB_CACHE. endpoint: the hub's, by default HF_ENDPOINT."""

    folder: Path = field(default_factory=lambda: Path(constants.HF_HUB_CACHE).expanduser())
    endpoint: str = field(default_factory=lambda: constants.ENDPOINT)

    def list_models(self) -> list[ModelFolder]:
        """Describe every model in the cache, those partly downloaded included, sorted by name."""
        found = (self._describe(name, home) for name, home in self._homes())
        return sorted(found, key=lambda model: model.name.lower())

    def find(self, name: str) -> ModelFolder | None:
        """Describe the model of a name; None if the cache has nothing of it. Raises HubError."""
        home = self.home(name)
        return self._describe(name, home) if home.is_dir() else None

    def remove(self, name: str) -> int:
        """Delete a model, downloaded in full or in part; return the bytes freed. Raises HubError."""
        home = self.home(name)
        if not home.is_dir():
            raise HubError("unknown", f"there is no model {name} in {self.folder}")
        with self.locked(name):
            num_bytes = _size(home)
            scan = scan_cache_dir(self.folder)
            # huggingface_hub knows which files other models share; what it cannot read shares none.
            for repo in scan.repos:
                if repo.repo_path.resolve() == home.resolve():
                    scan.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
            try:
                shutil.rmtree(home)
            except FileNotFoundError:
                pass
            except OSError as fault:
                raise HubError("failed", f"cannot remove {name}: {fault}") from fault
            shutil.rmtree(self.folder / ".locks" / home.name, ignore_errors=True)
        return num_bytes

    def home(self, name: str) -> Path:
        """Return the folder of the cache that holds a model, if it has been downloaded. Raises HubError."""
        try:
            validate_repo_id(name)
        except HFValidationError as fault:
            raise HubError(
                "name", f"{name!r} cannot be a model on the hub; names look like org/name"
            ) from fault
        return self.folder / (_PREFIX + name.replace("/", "--"))

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep others, also in other processes, from downloading or removing a model. Raises HubError."""
        folder = self.folder / ".locks" / self.home(name).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stream = (folder / "pull.lock").open("w")
        except OSError as fault:
            raise HubError("failed", f"cannot write to {self.folder}: {fault.strerror}") from fault
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as fault:
                raise HubError("busy", f"{name} is being downloaded or removed already") from fault
            yield

    def _homes(self) -> Iterator[tuple[str, Path]]:
        for home in self.folder.glob(f"{_PREFIX}*"):
            name = home.name.removeprefix(_PREFIX).replace("--", "/")
            if home.is_dir():
                yield name, home

    def _describe(self, name: str, home: Path) -> ModelFolder:
        snapshot = self._newest_snapshot(home)
        num_bytes = _size(home)
        broken_off = f"its download has not ended; `reprise pull {name}` continues it"
        if snapshot is None:
            return ModelFolder(name, home, num_bytes, fault=broken_off)
        found = replace(describe_folder(snapshot, name), num_bytes=num_bytes)
        return found if self._is_whole(name, snapshot.name) else replace(found, fault=broken_off)

    def _newest_snapshot(self, home: Path) -> Path | None:
        """Return the snapshot of the main branch, which mlx-lm loads; without one, the one written last."""
        snapshots = [folder for folder in (home / "snapshots").glob("*") if folder.is_dir()]
        try:
            main = home / "snapshots" / read_bytes(home / "refs" / "main").decode().strip()
        except (ModelError, OSError, ValueError):
            return max(snapshots, key=lambda folder: folder.stat().st_mtime, default=None)
        return main if main in snapshots else None

    def _is_whole(self, name: str, commit: str) -> bool:
        try:
            snapshot_download(
                name, revision=commit, cache_dir=self.folder, local_files_only=True,
                allow_patterns=list(NEEDED_FILES),
            )  # fmt: skip
        except LocalEntryNotFoundError:
            return False
        return True


def _size(home: Path) -> int:
    """Return the bytes of a model's files, each once; whole ones are links from snapshots to blobs."""
    files = {path.resolve() for path in home.rglob("*") if path.is_file()}
    return sum(file.stat().st_size for file in files)
