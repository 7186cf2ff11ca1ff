"""Store the results of a model's trials on disk, so that the next start need not repeat them.

The file's name depends on the model, the libraries, this program's code and the machine. Only successes are
stored: what failed is tried at every start, since it may have failed for lack of memory.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from reprise.config.atomic_files import read_object, remove_oldest, write_in_folder
from reprise.engine.interface.models import ModelInfo

log = logging.getLogger("reprise.engine")

MAX_KEPT = 32
"""Files to keep: those used last. One takes a kilobyte."""

_NAME = r"findings-[0-9a-f]{40}\.json"
_ENGINE = Path(__file__).parents[1]

NOT_TRIED = "what the model can do is still being tried"
"""The fault reported before a trial is done."""

Found = TypeVar("Found")


class PutOffError(BaseException):
    """A trial was interrupted between two forward passes.

    Not an Exception: a trial that raises one has a result, a missing capability.
    """


class Findings:
    """Findings about one model. path: their file; None to store none.

    on_try: called with a finding's name before its trial. on_pass: called after each forward pass of a trial
        with the tokens that it fed.
    is_over: called before a trial and after each of its passes; True interrupts the trial.
    may_put_off: whether an interrupted trial is put off, and a cautious finding used until then. If not, an
        interruption raises PutOffError.
    are_put_off: whether any trial was put off.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.on_try: Callable[[str], None] = lambda _: None
        self.on_pass: Callable[[int], None] = lambda _: None
        self.is_over: Callable[[], bool] = lambda: False
        self.may_put_off = self.are_put_off = False
        self._found: dict[str, Any] = {}
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None:
            self._known = read_object(path, log, "trying the model again")
            with suppress(OSError):
                os.utime(path)

    @classmethod
    def of(cls, info: ModelInfo, folder: Path | None) -> "Findings":
        """Read the findings about a model. folder: the folder of all models' files; None to store none."""
        if folder is None:
            return cls()
        machine = info.device, os.cpu_count(), version("mlx"), version("mlx-lm"), _own_digest()
        digest = hashlib.sha256(repr((info.fingerprint, machine)).encode()).hexdigest()[:40]
        return cls(folder / f"findings-{digest}.json")

    def put_off_after(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Put off trials not done this many seconds after the first began. clock: returns seconds."""
        until: list[float] = []

        def is_over() -> bool:
            if not until:
                until.append(clock() + seconds)
            return clock() >= until[0]

        self.is_over, self.may_put_off = is_over, True

    def put_nothing_off(self) -> None:
        """Remove the time limit from later trials, and forget that any was put off."""
        self.is_over, self.may_put_off, self.are_put_off = lambda: False, False, False
        self._found.clear()

    def watch(self, model: Any) -> Any:
        """Wrap a model for a trial, so that each forward pass is computed at once and may interrupt it."""
        return _Watched(model, self.note_pass)

    def note_pass(self, num_tokens: int) -> None:
        """Count a trial's forward pass over num_tokens tokens. Raises PutOffError to interrupt the trial."""
        self.on_pass(num_tokens)
        if self.is_over():
            raise PutOffError

    def find(
        self,
        name: str,
        try_it: Callable[[], Found],
        is_kept: Callable[[Found], bool],
        encode: Callable[[Found], Any] = lambda found: found,
        decode: Callable[[Any], Found] = lambda known: known,
        meanwhile: Callable[[], Found] | None = None,
    ) -> Found:
        """Return the finding of this name, from a trial if it is not known.

        try_it: makes the finding. is_kept: whether to store it on disk. encode, decode: to and from JSON.
            meanwhile: makes the finding to use while the trial is put off; None if it cannot be put off.
        """
        if name in self._known:
            # A file that another program wrote.
            with suppress(TypeError, ValueError):
                return decode(self._known[name])
        if name in self._found:
            kept: Found = self._found[name]
            return kept
        try:
            if meanwhile and self.is_over():
                raise PutOffError
            self.on_try(name)
            found = try_it()
        except PutOffError:
            if meanwhile is None or not self.may_put_off:
                raise
            self.are_put_off = True
            return meanwhile()
        if self.are_put_off:
            # Reported as a fault until the trial is done.
            self._found[name] = found
        if is_kept(found):
            self._known[name] = encode(found)
            self._write()
        return found

    def find_fault(self, name: str, try_it: Callable[[], str | None]) -> str | None:
        """Return why the model lacks the capability `name`, as try_it() says; None if it has it."""
        return self.find(name, try_it, lambda fault: fault is None, meanwhile=lambda: NOT_TRIED)

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            write_in_folder(self._path, json.dumps(self._known).encode(), _NAME)
        except OSError as fault:
            log.warning("cannot write %s (%s); the next start tries the model again", self._path, fault)
        remove_oldest(self._path.parent, _NAME, MAX_KEPT)


class _Watched:
    """A model whose forward passes are computed at once. note: called after each with the tokens fed."""

    def __init__(self, model: Any, note: Callable[[int], None]) -> None:
        self._model, self._note = model, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, *given: Any, **named: Any) -> Any:
        logits = self._model(tokens, *given, **named)
        mx.eval(logits)
        self._note(tokens.size)
        return logits


@cache
def _own_digest() -> str:
    """Return a digest of the code that decides the findings."""
    caches = [file for file in (_ENGINE / "kv_cache").rglob("*.py") if file.parent.name != "prefix_cache"]
    files = [*sorted(caches), _ENGINE / "memory" / "estimate.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
