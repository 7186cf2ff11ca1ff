"""Do random things with the rows of a model, as one rank of several or alone, and write what the caches hold.

Arguments: the model's folder, the file to write, the split, the seed, the number of things to do.
"""

import hashlib
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from reprise.config.settings import Settings
from reprise.engine.distributed import follow
from reprise.engine.distributed.follow import Replica
from reprise.engine.distributed.rank_0 import Ranks, leave
from reprise.engine.distributed.ranks import read_place
from reprise.engine.kv_cache.buffers import cut_slice, leading, rebuild, split_slice, take_state
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.probes import find_sharing
from reprise.engine.kv_cache.rows import Rows, Sharing, make_batched_rows, make_rows
from reprise.engine.model.loading import make_loader

MAX_ROWS, MAX_TOKENS, MAX_KEPT = 5, 120, 4
VOCAB_SIZE = 4096
FIRST_LIMIT = 32
"""Tokens of rows in the first group, so that there are several groups where a model allows it."""


def digest(arrays: Sequence[mx.array | None]) -> list[str | None]:
    """Return a digest of the bytes of each array."""
    return [None if one is None else _digest(one) for one in arrays]


def _digest(array: mx.array) -> str:
    numbers = np.ascontiguousarray(np.array(array.view(mx.uint8)))
    return hashlib.sha256(repr((array.shape, array.dtype)).encode() + numbers.tobytes()).hexdigest()[:16]


class Walk:
    """Random joins, leaves, steps and rollbacks; all that is chosen depends on the seed alone."""

    def __init__(self, model: Any, seed: int, sharing: Sharing) -> None:
        self._model = model
        self._random = random.Random(seed)
        self.rows: Rows = make_rows(model, sharing)
        if sharing >= Sharing.LAYERS:
            self.rows = make_batched_rows(model, FIRST_LIMIT, sharing is Sharing.LAYERS)
        # Prefixes: a slice, its length, and the state after it.
        self._kept: list[tuple[Any, int, Any]] = []
        self.held: list[Any] = []
        self._logits = hashlib.sha256()

    def go(self, num: int) -> dict[str, int]:
        """Do things; return how often each was done."""
        done: dict[str, int] = {}
        for _ in range(num):
            name = self._choose()
            done[name] = done.get(name, 0) + 1
            self._do[name](self)
        return done

    def found(self) -> dict[str, Any]:
        """Copy what the rows hold, and keep nothing else.

        Returns digests of its arrays, and the numbers of the copies on other ranks.
        """
        held = self.held
        for row, length in enumerate(self.rows.lengths):
            held += [self.rows.kv_slice(row, 0, length), self.rows.state(row)]
        self._kept.clear()
        return {
            "logits": self._logits.hexdigest(),
            "lengths": list(self.rows.lengths),
            "held": [digest(one) for one in held],
            "numbers": [getattr(one, "handle").number for one in held if hasattr(one, "handle")],  # noqa: B009
        }

    def _choose(self) -> str:
        lengths = self.rows.lengths
        if not lengths:
            return "join"
        if max(lengths) > MAX_TOKENS:
            return "leave"
        some = ["step", "step", "verify", "verify", "leave", "keep"]
        some += ["join"] * (len(lengths) < MAX_ROWS) + ["join_kept", "split"] * bool(self._kept)
        chosen = self._random.choice(some)
        return "leave" if chosen == "join_kept" and len(lengths) >= MAX_ROWS else chosen

    def _tokens(self, num: int) -> list[int]:
        return [self._random.randrange(VOCAB_SIZE) for _ in range(num)]

    def _see(self, logits: mx.array) -> None:
        self._logits.update(np.array(logits.astype(mx.float32)).tobytes())

    def _prefill(self, caches: Any, num: int) -> None:
        self._see(self._model(mx.array([self._tokens(num)]), cache=caches))

    def _join(self) -> None:
        caches, length = make_caches(self._model), self._random.randint(1, 40)
        self._prefill(caches, length)
        if self._random.random() < 0.3:
            self._keep_from(caches, length)
        self.rows.add(caches, length)

    def _join_kept(self) -> None:
        kv_slice, length, state = self._random.choice(self._kept)
        if not state and length > 1:
            length = self._random.randint(1, length)
            kv_slice = leading(kv_slice, length)
        caches = rebuild(make_caches(self._model), [kv_slice], state, length)
        more = self._random.randint(1, 9)
        self._prefill(caches, more)
        self.rows.add(caches, length + more)

    def _keep_from(self, caches: Any, length: int) -> None:
        self._kept.append((cut_slice(caches, 0, length), length, take_state(caches)))
        del self._kept[:-MAX_KEPT]

    def _keep(self) -> None:
        row = self._random.randrange(len(self.rows.lengths))
        length = self.rows.lengths[row]
        self._kept.append((self.rows.kv_slice(row, 0, length), length, self.rows.state(row)))
        del self._kept[:-MAX_KEPT]

    def _split(self) -> None:
        kv_slice, length, state = self._kept.pop(0)
        # State belongs to the whole length.
        if state or length < 2:
            return
        at = self._random.randint(1, length - 1)
        upper = split_slice(kv_slice, at)
        caches = rebuild(make_caches(self._model), [upper, kv_slice], [], length)
        self._keep_from(caches, length)

    def _leave(self) -> None:
        self.rows.remove(self._random.randrange(len(self.rows.lengths)))

    def _step(self) -> None:
        tokens = [self._tokens(1) for _ in self.rows.lengths]
        self._see(self.rows.forward(mx.array(tokens)))

    def _verify(self) -> None:
        before = list(self.rows.lengths)
        fed = [self._tokens(self._random.randint(1, 5)) for _ in before]
        logits = self.rows.forward_ragged(fed)
        for row, tokens in enumerate(fed):
            self._see(logits[row, : len(tokens)])
            self.rows.roll_back(row, before[row] + self._random.randint(1, len(tokens)))

    _do: ClassVar[dict[str, Callable[["Walk"], None]]] = {
        "join": _join,
        "join_kept": _join_kept,
        "keep": _keep,
        "split": _split,
        "leave": _leave,
        "step": _step,
        "verify": _verify,
    }


class Recording(Replica):
    """Another rank's side, which writes what it holds after each command that can be the last."""

    file: Path

    def do(self, command: Any) -> None:
        super().do(command)
        if command[1] == "limit_growth":
            lists = {str(at): digest(one) for at, one in self.objects.items() if type(one) is list}
            self.file.write_text(json.dumps({"held": lists, "num_objects": len(self.objects)}))


def main(model: str, file: str, split: str, seed: str, num: str) -> None:
    """Run this rank."""
    settings = Settings(model=model, split=split, keeps_costs=False)
    place = read_place()
    if place is not None and place.rank:
        Recording.file = Path(file)
        follow.Replica = Recording  # type: ignore[misc]
        follow.run(place, settings)
    ranks = Ranks(place, settings) if place else None
    loaded = ranks.load(None) if ranks else make_loader(settings)(None)
    sharing = find_sharing(loaded.model)
    if ranks:
        ranks.begin_serving()
    walk = Walk(loaded.model, int(seed), sharing)
    done = walk.go(int(num))
    found = walk.found()
    # The last command, upon which the others write. It also drops what is not needed any more.
    walk.rows.limit_growth(1 << 20)  # type: ignore[attr-defined]
    Path(file).write_text(json.dumps(found | {"done": done, "sharing": sharing.name}))
    if ranks:
        leave(ranks.release(0))


if __name__ == "__main__":
    main(*sys.argv[1:])
