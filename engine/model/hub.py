"""Find a model's folder by path or hub name, and download models."""

import errno
import fcntl
import hashlib
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal, cast
from urllib.parse import urlsplit

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_url,
    scan_cache_dir,
    snapshot_download,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    disable_progress_bars,
    filter_repo_objects,
    validate_repo_id,
)
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import Progress
from reprise.engine.model.files.folder_reader import find_files, read_bytes
from reprise.engine.model.files.model_folder import ModelFolder, describe_folder

log = logging.getLogger("reprise.engine")

HubFault = Literal["name", "unknown", "gated", "offline", "space", "busy", "kind", "failed"]

NEEDED_FILES = tuple(DEFAULT_ALLOW_PATTERNS)
"""Patterns of the files that mlx-lm downloads."""

WHOLE_FILES = (*NEEDED_FILES, "*_Dense/model.safetensors")
"""Patterns of the files of which a whole model consists; mlx-lm needs no dense layers after pooling."""

_PREFIX = "models--"


class HubError(Exception):
    """A model cannot be downloaded, found or removed; the message is one line that says why.

    kind: name (not a valid hub name), unknown (no such model), gated, offline, space (the disk is full),
        busy (another process downloads it), kind (not a text model of mlx-lm), or failed.
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
        """Hold a model's lock against downloads and removals, also by other processes. Raises HubError."""
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
            return ModelFolder(name, home, num_bytes, fault=broken_off, is_whole=False)
        found = replace(describe_folder(snapshot, name), num_bytes=num_bytes)
        if self._is_whole(name, snapshot.name):
            return found
        return replace(found, fault=broken_off, is_whole=False)

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
                allow_patterns=list(WHOLE_FILES),
            )  # fmt: skip
        except LocalEntryNotFoundError:
            return False
        return True


def _size(home: Path) -> int:
    """Return the bytes of a model's files, each once; whole ones are links from snapshots to blobs."""
    return sum({(file.st_dev, file.st_ino): file.st_size for file in find_files(home).values()}.values())


ReportBytes = Callable[[int, int], None]
"""Called from several threads, one at a time, with the downloaded and the total bytes.

An exception ends the download, which can be continued later.
"""

PULLED_FILES = (*WHOLE_FILES, "mtp.safetensors", "mtp/weights.safetensors")
"""Patterns of the files that are downloaded: a head that drafts, too."""

NUM_STREAMS = 4
"""Files that are downloaded at a time."""

RESERVED_BYTES = 1 << 30
"""Bytes of the disk that a download leaves free."""

_SHA256 = re.compile("[0-9a-f]{64}")


def pull(name: str, report: ReportBytes | None = None, cache: HubCache | None = None) -> ModelFolder:
    """Download a model's missing files, and describe it. Raises HubError, or an exception of report()."""
    cache = cache or HubCache()
    home = cache.home(name)
    with cache.locked(name), _explained(cache, name), disable_progress_bars():
        commit, files = _list_files(cache, name)
        _Download(cache, name, commit, files, report or (lambda _done, _total: None)).run()
    found = cache.find(name)
    if found is None:
        raise HubError("failed", f"{name} was downloaded, but {home} is not there")
    return found


class _Download:
    """The download of one model: its large files here, then the others by huggingface_hub."""

    def __init__(
        self, cache: HubCache, name: str, commit: str, files: list[RepoSibling], report: ReportBytes
    ) -> None:
        self._cache, self._name, self._commit, self._report = cache, name, commit, report
        self._blobs = cache.home(name) / "blobs"
        self._total = sum(file.size or 0 for file in files)
        if not all(_SHA256.fullmatch(file.lfs.sha256) for file in files if file.lfs):
            raise HubError("failed", f"{cache.endpoint} names files of {name} by something else than SHA-256")
        # Over plain HTTP the hub gives no larger ones; huggingface_hub has another way to them.
        self._large = [
            file for file in files if file.lfs and file.lfs.size <= constants.MAX_HTTP_DOWNLOAD_SIZE
        ]
        self._done = {file.rfilename: self._bytes_present(file) for file in files}
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self) -> None:
        """Download the missing files. Raises the first exception of any of them."""
        self._check_space()
        self._blobs.mkdir(parents=True, exist_ok=True)
        missing = [file for file in self._large if not self._blob(file).exists()]
        pool = ThreadPoolExecutor(NUM_STREAMS)
        try:
            for future in as_completed([pool.submit(self._fetch, file) for file in missing]):
                future.result()
        finally:
            # Also after Ctrl-C: the threads end at their next part, and what they have stays.
            self._is_stopped = True
            pool.shutdown(cancel_futures=True)
        snapshot_download(
            self._name, cache_dir=self._cache.folder, endpoint=self._cache.endpoint,
            allow_patterns=list(PULLED_FILES),
        )  # fmt: skip
        self._report(self._total, self._total)

    def add(self, file: RepoSibling, num_bytes: int) -> None:
        """Note that num_bytes of a file are there, and report. Raises CancelledError once another failed."""
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            self._done[file.rfilename] = num_bytes
            self._report(sum(self._done.values()), self._total)

    def _blob(self, file: RepoSibling) -> Path:
        return self._blobs / (file.lfs.sha256 if file.lfs else str(file.blob_id))

    def _partial(self, file: RepoSibling) -> Path:
        return self._blobs / f"{self._blob(file).name}.incomplete"

    def _bytes_present(self, file: RepoSibling) -> int:
        for path in (self._blob(file), self._partial(file)):
            if path.is_file():
                return min(path.stat().st_size, file.size or 0)
        return 0

    def _check_space(self) -> None:
        needed = self._total - sum(self._done.values())
        folder = next(path for path in (self._blobs, *self._blobs.parents) if path.is_dir())
        free = shutil.disk_usage(folder).free
        if needed and needed + RESERVED_BYTES > free:
            raise HubError(
                "space",
                f"{self._name} needs {needed / 1e9:.1f} GB, and {RESERVED_BYTES / 1e9:.1f} GB to spare, but "
                f"{folder} has {free / 1e9:.1f} GB free; remove a model (`reprise list`, `reprise rm NAME`), "
                "or set HF_HUB_CACHE to a folder on another disk",
            )

    def _fetch(self, file: RepoSibling) -> None:
        assert file.lfs is not None
        url = hf_hub_url(self._name, file.rfilename, revision=self._commit, endpoint=self._cache.endpoint)
        partial = self._partial(file)
        found = get_hf_file_metadata(url, endpoint=self._cache.endpoint)
        # Where the hub sends us is another host, which must not see the token.
        is_elsewhere = urlsplit(found.location).netloc != urlsplit(url).netloc
        with partial.open("ab") as stream:
            if stream.tell() > file.lfs.size:
                stream.seek(0)
                stream.truncate()
            counted = _Counted(stream, lambda num_bytes: self.add(file, num_bytes))
            http_get(
                found.location,
                cast(BinaryIO, counted),
                resume_size=stream.tell(),
                headers=build_hf_headers(token=False if is_elsewhere else None),
                expected_size=file.lfs.size,
            )
        with partial.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != file.lfs.sha256:
            partial.unlink()
            raise HubError(
                "failed", f"{file.rfilename} of {self._name} arrived damaged and was deleted; pull it again"
            )
        partial.rename(self._blob(file))


class _Counted:
    """A file for http_get, with a callback that gets the file's size after every change."""

    def __init__(self, stream: BinaryIO, hear: Callable[[int], None]) -> None:
        self._stream, self._hear = stream, hear
        self.seek, self.tell = stream.seek, stream.tell

    def write(self, data: bytes) -> int:
        """Write a part of the file."""
        written = self._stream.write(data)
        self._hear(self._stream.tell())
        return written

    def truncate(self) -> int:
        """Cut the file at the current position: the server sends it from its beginning."""
        size = self._stream.truncate()
        self._hear(size)
        return size


def _list_files(cache: HubCache, name: str) -> tuple[str, list[RepoSibling]]:
    """Return the commit of a model's main branch, and the files there that mlx-lm needs."""
    info = HfApi(endpoint=cache.endpoint).model_info(name, files_metadata=True, timeout=30)
    siblings = list(info.siblings or ())
    files = list(
        filter_repo_objects(siblings, allow_patterns=list(PULLED_FILES), key=lambda file: file.rfilename)
    )
    names = {file.rfilename for file in files}
    if "config.json" not in names or not any(file.endswith(".safetensors") for file in names):
        gguf = any(file.rfilename.endswith(".gguf") for file in siblings)
        held = "GGUF files" if gguf else "no config.json with model*.safetensors"
        raise HubError("kind", f"{name} is no model for mlx-lm: it has {held}; look for one in mlx-community")
    return str(info.sha), files


@contextmanager
def _explained(cache: HubCache, name: str) -> Iterator[None]:
    """Turn exceptions of huggingface_hub into HubError."""
    try:
        yield
    except HubError:
        raise
    except GatedRepoError as fault:
        raise HubError(
            "gated", f"{name} is gated: accept its terms on {cache.endpoint}/{name} and set HF_TOKEN"
        ) from fault
    except RepositoryNotFoundError as fault:
        raise HubError(
            "unknown", f"there is no model {name} on {cache.endpoint}, or it is private and wants HF_TOKEN"
        ) from fault
    except OfflineModeIsEnabled as fault:
        raise HubError("offline", f"cannot pull {name}: HF_HUB_OFFLINE is set") from fault
    except HfHubHTTPError as fault:
        raise HubError("failed", f"{cache.endpoint} refused {name}: {_first_line(fault)}") from fault
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            _drop_partial_files(cache.home(name))
            raise HubError(
                "space", f"the disk of {cache.folder} is full; unfinished files of {name} were deleted"
            ) from fault
        if fault.filename:
            raise HubError("failed", f"cannot pull {name}: {fault}") from fault
        raise _broken_off(cache, name, fault) from fault
    except Exception as fault:
        # Of the HTTP client, which is huggingface_hub's own affair.
        if not type(fault).__module__.startswith(("httpx", "huggingface_hub")):
            raise
        raise _broken_off(cache, name, fault) from fault


def _broken_off(cache: HubCache, name: str, fault: Exception) -> HubError:
    return HubError(
        "offline",
        f"the connection to {cache.endpoint} failed ({_first_line(fault)}); `reprise pull {name}` continues",
    )


def _first_line(fault: Exception) -> str:
    return next((line.strip() for line in str(fault).splitlines() if line.strip()), type(fault).__name__)


def _drop_partial_files(home: Path) -> None:
    for partial in home.glob("blobs/*.incomplete"):
        with suppress(OSError):
            partial.unlink()


def find_folder(source: str, progress: Progress | None = None) -> Path:
    """Return the folder of a model: the source itself, or the hub cache's for a name, downloaded if need be.

    Raises ModelError.
    """
    folder = Path(source)
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise not_a_model(folder)
        return folder
    # Names on the hub have one slash at most, in the middle.
    if source.startswith((".", "~", "/")) or source.endswith("/") or source.count("/") > 1:
        raise ModelError(f"there is no model folder {source}")
    try:
        found = HubCache().find(source)
        if found is None or not found.is_whole:
            log.info("downloading the model %s", source)
            found = pull(source, lambda done, total: progress(done / total) if progress else None)
    except HubError as fault:
        raise ModelError(f"cannot load the model {source}, which is no folder here: {fault}") from fault
    return found.path


def find_downloaded(source: str) -> Path:
    """Return the folder of a model by its path or its name in the hub's cache. Raises ModelError."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if not folder.is_absolute() and not source.startswith("."):
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
    """Return the error for a folder that holds no model, with a remedy."""
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
