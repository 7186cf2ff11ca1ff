"""Load this rank's part of the model, and describe it to rank 0."""

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from reprise.config.settings import Settings
from reprise.engine.distributed.parts.part_files import PartFiles
from reprise.engine.distributed.parts.shard import Shard
from reprise.engine.distributed.parts.splitting import split_model
from reprise.engine.distributed.ranks.facts import read_split_layers
from reprise.engine.distributed.ranks.place import Place
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from reprise.engine.kv_cache.prefix_cache.weights_digest import weights_fingerprint
from reprise.engine.memory.machine import usable_bytes
from reprise.engine.model.loading import LoadedModel, Progress, make_loader


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

    def as_message(self) -> dict[str, Any]:
        """Return the fields as a dictionary, to be sent as JSON."""
        return asdict(self)


def load_part(
    settings: Settings, group: mx.distributed.Group, progress: Progress | None = None
) -> tuple[LoadedModel, PartFacts]:
    """Load this rank's part of the model, and describe it. The loaded model is a Shard. Raises ModelError."""
    layers: list[int] | None = None

    def split(model: Any) -> None:
        nonlocal layers
        given = read_split_layers(settings.split_layers)
        layers = split_model(model, group, settings.split, given, settings.model_source)

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
    shard.place = f"{settings.split} {layers} of {group.size()}"
    if settings.prefix_cache_dir is not None and group.rank():
        shard.files = _open_files(loaded.model, settings, f"{shard.place} {group.rank()}", group)
    loaded.model = shard
    return loaded, facts


def _open_files(model: Any, settings: Settings, place: str, group: mx.distributed.Group) -> PartFiles:
    assert settings.prefix_cache_dir
    # A folder that machines share, or processes on one, has all of their parts.
    folder = Path(settings.prefix_cache_dir) / f"rank-{group.rank()}-of-{group.size()}"
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
                f"with those of rank 0 ({', '.join(sorted(ours.kinds))}): choose another --split-layers, so "
                "that rank 0, which has the last layers, has some of each kind"
            )
        share = max(part.kinds[kind] / ours.kinds[kind] for kind in part.kinds)
        rooms.append(int(part.room_bytes / share))
    return min(rooms)
