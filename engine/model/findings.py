"""Keep on disk the findings about a model that took trials, so that the next start need not try again.

Findings depend on the model, on the libraries and this program that compute with it, and on the
machine. All of these go into the file's name. Only what a model can do is kept: what failed is tried at every
start, for it may have failed for lack of memory.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from reprise.config.whole_file import read_object, remove_oldest, write_in_folder
from reprise.engine.interface.models import ModelInfo

log = logging.getLogger("reprise.engine")

MAX_KEPT = 32
"""Files to keep: those used last. One takes a kilobyte."""

_NAME = r"findings-[0-9a-f]{40}\.json"
_ENGINE = Path(__file__).parents[1]

Found = TypeVar("Found")


class Findings:
    """Findings about one model. path: the file that keeps them; None to keep none.

    on_try: called with a finding's name before its trial, which can take as long as many steps.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.on_try: Callable[[str], None] = lambda _: None
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None:
            self._known = read_object(path, log, "trying the model again")
            with suppress(OSError):
                os.utime(path)

    @classmethod
    def of(cls, info: ModelInfo, folder: Path | None) -> "Findings":
        """Read the findings about a model. folder: the folder of all models' files; None to keep none."""
        if folder is None:
            return cls()
        machine = info.device, os.cpu_count(), version("mlx"), version("mlx-lm"), _own_digest()
        digest = hashlib.sha256(repr((info.fingerprint, machine)).encode()).hexdigest()[:40]
        return cls(folder / f"findings-{digest}.json")

    def find(
        self,
        name: str,
        try_it: Callable[[], Found],
        is_kept: Callable[[Found], bool],
        encode: Callable[[Found], Any] = lambda found: found,
        decode: Callable[[Any], Found] = lambda known: known,
    ) -> Found:
        """Return the finding of a name; if it is not known, make the trial.

        try_it: the trial, which returns the finding. is_kept: whether to keep it on disk. encode, decode: a
            finding to JSON and back.
        """
        if name in self._known:
            # A file that another program wrote.
            with suppress(TypeError, ValueError):
                return decode(self._known[name])
        self.on_try(name)
        found = try_it()
        if is_kept(found):
            self._known[name] = encode(found)
            self._write()
        return found

    def find_fault(self, name: str, try_it: Callable[[], str | None]) -> str | None:
        """Return why the model cannot do what `name` says; None if it can. try_it: returns the same."""
        return self.find(name, try_it, lambda fault: fault is None)

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            write_in_folder(self._path, json.dumps(self._known).encode(), _NAME)
        except OSError as fault:
            log.warning("cannot write %s (%s); the next start tries the model again", self._path, fault)
        remove_oldest(self._path.parent, _NAME, MAX_KEPT)


@cache
def _own_digest() -> str:
    """Return a digest of the code that decides what is found."""
    others = _ENGINE / "memory" / "footprint.py", _ENGINE / "speculative" / "costs" / "exact_widths.py"
    caches = [file for file in (_ENGINE / "kv_cache").rglob("*.py") if file.parent.name != "prefix_cache"]
    files = [*sorted(caches), *others]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
