"""Split a model over machines, and store each part's prefix files."""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from reprise.config.atomic_files import remove_unfinished
from reprise.config.settings import Settings
from reprise.engine.distributed.ranks import Place
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import Progress
from reprise.engine.kv_cache.buffers import KVSlice, State
from reprise.engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from reprise.engine.kv_cache.prefix_cache import disk
from reprise.engine.kv_cache.prefix_cache.disk import (
    NAME_PATTERN,
    SUFFIX,
    Contents,
    Header,
    PrefixFileError,
    weights_fingerprint,
)
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.model.device import usable_bytes
from reprise.engine.model.loading import LoadedModel, make_loader

Split = Literal["pipeline", "tensor"]

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
"""Sizes in a configuration that tensor parallelism divides by the number of ranks."""


def split_model(
    model: Any, group: mx.distributed.Group, split: Split, layers: Sequence[int], name: str
) -> list[int] | None:
    """Reduce a model to this rank's part; return the number of layers of each rank in a pipeline, else None.

    layers: how many each rank is to have, rank 0 first; empty for an even split.
    name: the model's name, for messages.
    Raises ModelError if the model cannot be split in this way.
    """
    if split == "pipeline":
        return _split_layers(model, group, layers, name)
    if not hasattr(model, "shard"):
        other = "; --split pipeline works" if _pipelined(model) is not None else ""
        raise ModelError(f"mlx-lm cannot split {name} within its layers (--split tensor){other}")
    _check_divisible(vars(getattr(model, "args", None) or object), group.size(), name)
    try:
        model.shard(group)
    except Exception as fault:
        raise ModelError(f"{name} cannot be split over {group.size()} machines: {fault}") from fault
    return None


def _split_layers(model: Any, group: mx.distributed.Group, layers: Sequence[int], name: str) -> list[int]:
    inner = _pipelined(model)
    if inner is None:
        other = "; --split tensor works" if hasattr(model, "shard") else ""
        raise ModelError(f"mlx-lm cannot split {name} by layers (--split pipeline){other}")
    num_layers = len(inner.layers)
    base, extra = divmod(num_layers, group.size())
    chosen = list(layers) if layers else [base + (rank < extra) for rank in range(group.size())]
    if len(chosen) != group.size() or min(chosen) < 1 or sum(chosen) != num_layers:
        given = ",".join(map(str, chosen))
        raise ModelError(
            f"--split {given}: {name} has {num_layers} layers for {group.size()} ranks; give each "
            f"of them at least one, and {num_layers} in all"
        )
    inner.pipeline(group, split=chosen)
    return chosen


def _pipelined(model: Any) -> Any:
    """Return the part of a model that can be split by layers, None if there is none."""
    inner = getattr(getattr(model, "language_model", model), "model", None)
    return inner if hasattr(inner, "pipeline") else None


def _check_divisible(config: Mapping[str, Any], size: int, name: str) -> None:
    text = config.get("text_config") or {}
    for key in DIVIDED:
        number = config.get(key) or text.get(key)
        if isinstance(number, int) and number % size:
            raise ModelError(f"{name} cannot be split over {size} machines: its {key} is {number}")
    quantization = config.get("quantization") or {}
    group_size = quantization.get("group_size")
    for key in DIVIDED[2:]:
        number = config.get(key) or text.get(key)
        if group_size and isinstance(number, int) and number // size % group_size:
            raise ModelError(
                f"{name} cannot be split over {size} machines: a part of its {key} has {number // size} "
                f"numbers, which is no multiple of the quantization's groups of {group_size}"
            )


log = logging.getLogger("reprise.engine")

Reading = Future[list[Contents]]


class PartFiles:
    """The prefix files of a rank other than rank 0. A thread reads and writes them in the order of the calls.

    folder: this rank's own, made if missing. Raises OSError if it cannot be used.
    fingerprint: identifies this rank's part of the model, and how the model is split.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(folder, NAME_PATTERN)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-files")

    def keep(self, names: Sequence[str]) -> None:
        """Delete the files of this part that are not among the names."""
        kept = set(names)
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name in kept:
                continue
            try:
                is_ours = disk.read_header(path).fingerprint == self._fingerprint
            except PrefixFileError:
                is_ours = False
            if is_ours:
                path.unlink(missing_ok=True)

    def save(self, name: str, kv_slice: KVSlice, state: State) -> None:
        """Start to write the arrays of a KV slice and a state to the file of this name."""
        contents = disk.to_contents(kv_slice, state)
        # Only rank 0 needs to know the tokens.
        header = Header(self._fingerprint, "", 0, TextKey.of([]), bool(state))
        self._thread.submit(_write, self._path(name), header, contents)

    def drop(self, name: str) -> None:
        """Start to delete the file of this name."""
        self._thread.submit(self._path(name).unlink, missing_ok=True)

    def begin_read(self, names: Sequence[str]) -> Reading:
        """Start to read files of KV slices. names: of consecutive runs of tokens, in order."""
        return self._thread.submit(self._read, [self._path(name) for name in names])

    def close(self) -> None:
        """Wait until all files are written."""
        self._thread.shutdown()

    def _read(self, paths: Sequence[Path]) -> list[Contents]:
        for path in paths:
            if disk.read_header(path).fingerprint != self._fingerprint:
                raise PrefixFileError(f"{path.name} is of other weights")
        return [disk.read(path) for path in paths]

    def _path(self, name: str) -> Path:
        # Untrusted names stay within the folder.
        if not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(f"{name} is no name of a prefix file")
        return self._folder / name


def _write(path: Path, header: Header, contents: Contents) -> None:
    try:
        disk.write(path, header, contents)
    except OSError as fault:
        log.warning("could not write a prefix to %s: %s", path, fault)


EXCHANGES = ("all_gather", "all_sum", "recv", "recv_like", "send")


class Agreement:
    """Finds out whether all ranks can do the present command, before any of them runs it.

    exchange: sends this rank's error (or None) to the other ranks, and returns the text of another rank's.
    asks: whether the others are asked at all. has_failed: whether a rank cannot do the command.
    """

    def __init__(self, exchange: Callable[[Exception | None], str | None] = lambda _: None) -> None:
        self._exchange = exchange
        self.asks = self.has_failed = False

    def begin(self, *, asks: bool) -> None:
        """Begin a command."""
        self.asks, self.has_failed = asks, False

    def __call__(self, fault: Exception | None) -> None:
        """Wait until every rank has built its part of the command.

        fault: what building raised on this rank, if anything; it is raised again.
        Raises RuntimeError with the fault of another rank.
        """
        if fault is not None:
            if self.asks:
                self.fail(fault)
            raise fault
        if self.asks and not self.has_failed and (other := self._exchange(None)) is not None:
            self.has_failed = True
            raise RuntimeError(other)

    def fail(self, fault: Exception) -> None:
        """Tell the other ranks once that this rank cannot do the command."""
        if not self.has_failed:
            self.has_failed = True
            self._exchange(fault)


class Shard:
    """One rank's part of a model: called as the model is, on every rank with the same commands.

    model: this rank's part, a module of mlx-lm.
    agree: called between building and evaluating a forward pass.
    place: how the model is split, in words.
    files: the prefix files of a rank other than rank 0; None if it has none.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.agree = Agreement()
        self.place = ""
        self.files: PartFiles | None = None

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        """Run one forward pass; return its logits, not yet evaluated."""
        fault: Exception | None = None
        with _exchanges() as made:
            try:
                logits: mx.array = self.model(tokens, cache=cache)
            # Any exception must reach the other ranks before they wait for this one.
            except Exception as raised:
                fault = raised
        self.agree(fault)
        mx.async_eval(made)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def share_tokens(tokens: mx.array) -> mx.array:
    """Return rank 0's tokens on every rank; the other ranks pass zeros of the same shape.

    Tokens that were just sampled are on the device of rank 0 only, and this does not wait for them.
    """
    shared = mx.distributed.all_sum(tokens.astype(mx.int32))
    # Rank 0 of a pipeline never uses it, and the others would wait for ever.
    mx.async_eval(shared)
    return shared


def _independent(inputs: Any, dependencies: Any) -> Any:  # noqa: ARG001 - MLX's own arguments
    return inputs


@contextmanager
def _exchanges() -> Iterator[list[mx.array]]:
    """Collect all that the block exchanges with other ranks, in order."""
    made: list[mx.array] = []
    originals = {name: getattr(mx.distributed, name) for name in EXCHANGES}
    depends = mx.depends

    def collecting(exchange: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def collect(*given: Any, **options: Any) -> mx.array:
            made.append(exchange(*given, **options))
            return made[-1]

        return collect

    try:
        for name, exchange in originals.items():
            setattr(mx.distributed, name, collecting(exchange))
        # Pipelines make a cache wait for what was sent, so that it is sent at all. Here it is in any case,
        # and no other array is known as the state that a traced function returned.
        mx.depends = _independent
        yield made
    finally:
        for name, exchange in originals.items():
            setattr(mx.distributed, name, exchange)
        mx.depends = depends


@dataclass(frozen=True)
class PartFacts:
    """The description of one rank's part of the model, as rank 0 gets it.

    layers: the number of layers of each rank in a pipeline; None if every rank has a part of all layers.
    kinds: number of its caches by kind. recurrent: whether any keeps state that every token overwrites.
    weight_bytes: memory that the part's weights take. room_bytes: memory that is left on this rank.
    """

    device: str
    layers: list[int] | None
    kinds: dict[str, int]
    recurrent: bool
    weight_bytes: int
    room_bytes: int


def load_part(
    settings: Settings, group: mx.distributed.Group, progress: Progress | None = None
) -> tuple[LoadedModel, PartFacts]:
    """Load this rank's part of the model, and describe it. The loaded model is a Shard. Raises ModelError."""
    layers: list[int] | None = None

    def split(model: Any) -> None:
        nonlocal layers
        layers = split_model(model, group, settings.split_kind, settings.split_layers, settings.model_source)

    loaded = make_loader(settings, split=split)(progress)
    given = settings.memory_bytes or usable_bytes()
    mx.set_memory_limit(given)
    if loaded.info.mask_token_id is not None:
        raise ModelError(f"{loaded.info.name} is a WeDLM model, which cannot be split over several machines")
    caches = list(leaves(make_caches(loaded.model, settings.kv_bits)))
    kinds = Counter(type(cache).__name__ for cache in caches)
    recurrent = any(map(is_recurrent, caches))
    weight_bytes = loaded.info.weight_bytes
    facts = PartFacts(loaded.info.device, layers, dict(kinds), recurrent, weight_bytes, given - weight_bytes)
    shard = Shard(loaded.model)
    shard.place = f"{settings.split_kind} {layers} of {group.size()}"
    if settings.prefix_folder is not None and group.rank():
        shard.files = _open_files(loaded.model, settings, f"{shard.place} {group.rank()}", group)
    loaded.model = shard
    return loaded, facts


def _open_files(model: Any, settings: Settings, place: str, group: mx.distributed.Group) -> PartFiles:
    assert settings.prefix_folder
    # A folder that machines share, or processes on one, has all of their parts.
    folder = settings.prefix_folder / f"rank-{group.rank()}-of-{group.size()}"
    known = (place, weights_fingerprint(model), settings.kv_bits, version("mlx"), version("mlx-lm"))
    try:
        return PartFiles(folder, hashlib.sha256(repr(known).encode()).hexdigest())
    except OSError as fault:
        raise ModelError(f"--prefix-cache-dir {folder}: {fault.strerror or fault}") from fault


def find_room(place: Place, parts: list[PartFacts]) -> int:
    """Return the bytes that rank 0 may use for rows such that no rank runs out of memory.

    A rank with more layers than rank 0 needs that much more memory for the same rows.
    Raises ModelError if a rank has no room, or holds a kind of cache that rank 0 does not know of.
    """
    ours = parts[0]
    rooms = []
    for rank, part in enumerate(parts):
        if part.room_bytes <= 0:
            raise ModelError(
                f"{place.name(rank)} has too little memory: its weights take {part.weight_bytes >> 20} MiB, "
                f"{-part.room_bytes >> 20} MiB more than it may use"
            )
        unknown = sorted(set(part.kinds) - set(ours.kinds))
        if unknown or part.recurrent != ours.recurrent:
            raise ModelError(
                f"{place.name(rank)} keeps caches of kinds ({', '.join(sorted(part.kinds))}) that do not go "
                f"with those of rank 0 ({', '.join(sorted(ours.kinds))}): choose other layers (--split), so "
                "that rank 0, which has the last layers, has some of each kind"
            )
        share = max(part.kinds[kind] / ours.kinds[kind] for kind in part.kinds)
        rooms.append(int(part.room_bytes / share))
    return min(rooms)
