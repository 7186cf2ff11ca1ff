"""The parts of vision towers' layers: attention over one image's patches, rotary positions, feed forward."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu, gelu_approx, gelu_fast_approx, silu

from reprise.engine.vision.weights import Activation, Weights

WORK = 2**20
"""Multiply-adds of a unit: some milliseconds where they are slowest."""

ROWS_ON_GPU = 32
"""A GPU takes about as long for one row, for which it may have another kernel, with other bits."""

SCORE_WORK = 64
"""Multiply-adds that take about as long as the rest of what is done with a score."""


@dataclass
class Portion:
    """The units of work allowed for the next slice, and those done by the last one.

    most: None for all of a stage. A slice does at least one row.
    """

    most: int | None = None
    done: int = 0


@dataclass(frozen=True)
class Stage:
    """A part of image encoding that can be cut between rows.

    kind: stages of one kind take about equal time per unit. size: rows. work: multiply-adds per row.
    together: rows that must stay in one slice.
    """

    kind: str
    size: int
    work: int
    together: int = 1

    @property
    def num_units(self) -> int:
        """Units of all rows, at least 1."""
        return -(-self.size * self.work // WORK)

    @property
    def least_units(self) -> int:
        """Units of the smallest slice."""
        return -(-min(self.size, self._least()) * self.work // WORK)

    def run(
        self, portion: Portion, compute: Callable[[int, int], Sequence[mx.array]], axis: int = 1
    ) -> Generator[Sequence[mx.array], None, list[mx.array]]:
        """Compute all rows, and yield what each slice adds; return the whole arrays.

        compute: returns the lazy arrays of rows [start, end). axis: the rows' axis in them.
        """
        made, start = [], 0
        while start < self.size:
            end = self._end(start, portion.most)
            portion.done = self._units_before(end) - self._units_before(start)
            made.append(compute(start, end))
            yield made[-1]
            start = end
        return [
            one[0] if len(one) == 1 else mx.concatenate(list(one), axis) for one in zip(*made, strict=True)
        ]

    def _end(self, start: int, most: int | None) -> int:
        if most is None:
            return self.size
        least = self._least()
        return min(self.size, start + least * max(1, most * WORK // (least * self.work)))

    def _least(self) -> int:
        """Return the rows of the smallest slice, unless fewer are left."""
        on_gpu = mx.default_device().type == mx.DeviceType.gpu
        return self.together * -(-ROWS_ON_GPU // self.together) if on_gpu else self.together

    def _units_before(self, row: int) -> int:
        """Units are left until the last row is computed."""
        return self.num_units if row == self.size else row * self.work // WORK


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_approx,
    "quick_gelu": gelu_fast_approx,
    "silu": silu,
}

FUSED_WIDTHS = (64, 80, 128)
"""Widths of a head for which Metal computes attention without a table of all scores."""

QUERIES = 128
"""Patches that attend at once where scores are a table: its rows."""

TASKS = 16
"""Arrays that are held at once: MLX lets ten tasks wait for the processor, some of which have two."""

Rotation = tuple[mx.array, mx.array]
"""Cosines and sines (patches, 1, parts, 1, pairs); see rotate()."""


@dataclass(frozen=True)
class Layers:
    """The structure of a family's layers, and the names of their weights.

    prefix: of names, before a layer's number. width: of a head. norm: Weights.layer_norm or rms_norm.
    norms: the norm before attention and the one before the feed forward. projections: a single one for
        queries, keys and values together, or three. feed_forward: in and out, or gate, in and out.
    norms_after: the norm after attention and the one after the feed forward, if the layers have these.
    norms_of_heads: the norms of queries and keys, if any; values then have one without weight, and scores are
        not scaled.
    """

    prefix: str
    count: int
    heads: int
    width: int
    norm: Callable[[Weights, str, mx.array, float], mx.array]
    eps: float
    activation: Activation
    norms: tuple[str, str]
    projections: tuple[str, ...]
    out: str
    feed_forward: tuple[str, ...]
    norms_after: tuple[str, str] | None = None
    norms_of_heads: tuple[str, str] | None = None

    @classmethod
    def of(cls, vision: Mapping[str, Any], **others: Any) -> "Layers":
        """Make them from a model's vision configuration. others: the fields that it does not name."""
        heads = int(vision.get("num_heads") or vision["num_attention_heads"])
        return cls(
            count=int(vision.get("depth") or vision["num_hidden_layers"]),
            heads=heads,
            width=int(vision.get("head_dim") or int(vision["hidden_size"]) // heads),
            activation=ACTIVATIONS[vision.get("hidden_act") or vision["hidden_activation"]],
            **others,
        )

    def stages(self, weights: Weights, num_groups: int, num_patches: int) -> tuple[Stage, Stage, Stage]:
        """Return the stages of a layer: project(), attend() and feed().

        Their rows are the patches of a single group, or whole groups if there are several.
        """
        inner = weights[f"{self.prefix}0.{self.feed_forward[0]}.weight"].shape[0]
        hidden = weights[f"{self.prefix}0.{self.out}.weight"].shape[0]
        wide = self.heads * self.width
        work = {
            "project": 3 * hidden * wide,
            "attend": num_patches * self.heads * (2 * self.width + SCORE_WORK),
            "feed": hidden * (wide + len(self.feed_forward) * inner),
        }
        size, each = (num_patches, 1) if num_groups == 1 else (num_groups, num_patches)
        project, attend, feed = (Stage(kind, size, each * one) for kind, one in work.items())
        return project, attend, feed

    def run(
        self,
        weights: Weights,
        index: int,
        x: mx.array,
        rotation: Rotation | None,
        portion: Portion,
        mask: mx.array | None = None,
    ) -> Generator[Sequence[mx.array], None, mx.array]:
        """Apply layer `index` to states x (groups, patches, width), in slices. See Stage.run().

        Patches attend only within a group.
        mask: (groups, 1, 1, patches), True for patches that exist.
        """
        project, attend, feed = self.stages(weights, len(x), x.shape[1])
        name, axis = f"{self.prefix}{index}.", int(len(x) == 1)
        # Rows of the rotation are patches, those of all groups.
        each = x.shape[1] if axis == 0 else 1

        def cut(array: mx.array, start: int, end: int) -> mx.array:
            return array[:, start:end] if axis else array[start:end]

        def projected(start: int, end: int) -> Sequence[mx.array]:
            turned = rotation and (
                rotation[0][each * start : each * end],
                rotation[1][each * start : each * end],
            )
            return self._project(weights, name, cut(x, start, end), turned)

        def attended(start: int, end: int) -> Sequence[mx.array]:
            seen = (keys, values, mask)
            if axis == 0:
                seen = (keys[start:end], values[start:end], None if mask is None else mask[start:end])
            scale = 1.0 if self.norms_of_heads else self.width**-0.5
            found = attend_to(cut(queries, start, end).swapaxes(1, 2), *seen[:2], scale, seen[2])
            return (found[..., : self.width].swapaxes(1, 2).flatten(2),)

        queries, keys, values = yield from project.run(portion, projected, axis)
        # Once, as every slice reads all of them.
        keys, values = (mx.contiguous(one.swapaxes(1, 2)) for one in (keys, values))
        (y,) = yield from attend.run(portion, attended, axis)
        (fed,) = yield from feed.run(
            portion, lambda s, e: (self._feed(weights, name, cut(x, s, e), cut(y, s, e)),), axis
        )
        return fed

    def _feed(self, weights: Weights, name: str, x: mx.array, y: mx.array) -> mx.array:
        """Return the states after a layer. y: attention's output for the states x, by head."""
        y = weights.linear(name + self.out, y)
        x = x + self._normal(weights, name, self.norms_after, 0, y)
        y = self._feed_forward(weights, name, self._normal(weights, name, self.norms, 1, x))
        return x + self._normal(weights, name, self.norms_after, 1, y)

    def _normal(
        self, weights: Weights, name: str, norms: tuple[str, str] | None, which: int, x: mx.array
    ) -> mx.array:
        return self.norm(weights, name + norms[which], x, self.eps) if norms else x

    def _project(
        self, weights: Weights, name: str, x: mx.array, rotation: Rotation | None
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Return queries, keys and values (groups, patches, heads, width) of states x.

        width: the next one of FUSED_WIDTHS, with zeros at the end.
        """
        x = self._normal(weights, name, self.norms, 0, x)
        parts = [weights.linear(name + projection, x) for projection in self.projections]
        if len(parts) == 1:
            parts = list(mx.split(parts[0], 3, axis=-1))
        queries, keys, values = (part.reshape(*x.shape[:2], -1, self.width) for part in parts)
        if self.norms_of_heads:
            queries = self._normal(weights, name, self.norms_of_heads, 0, queries)
            keys = self._normal(weights, name, self.norms_of_heads, 1, keys)
            values = mx.fast.rms_norm(values, None, self.eps)
        if rotation:
            queries, keys = rotate(queries, rotation), rotate(keys, rotation)
        fused = next((fused for fused in FUSED_WIDTHS if self.width <= fused), self.width)
        padding = [(0, 0)] * 3 + [(0, fused - self.width)]
        return mx.pad(queries, padding), mx.pad(keys, padding), mx.pad(values, padding)

    def _feed_forward(self, weights: Weights, name: str, x: mx.array) -> mx.array:
        *gates, into, out = (name + layer for layer in self.feed_forward)
        if not gates:
            return weights.feed_forward(into, out, self.activation, x)
        return weights.linear(out, self.activation(weights.linear(gates[0], x)) * weights.linear(into, x))


def attend_to(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None = None
) -> mx.array:
    """Return attention of some patches to all: (groups, heads, some, width).

    queries: (groups, heads, some, width). keys, values: (groups, heads, patches, width).
    mask: (groups, 1, 1, patches), True for keys that count.
    """
    pieces: list[mx.array] = []
    together = queries.shape[2] if is_fused(queries.shape[-1]) else QUERIES
    for start in range(0, queries.shape[2], together):
        some = queries[:, :, start : start + together]
        # MLX would compute the scores of all pieces before it uses any.
        some = mx.depends(some, pieces[-1]) if pieces else some
        pieces.append(mx.fast.scaled_dot_product_attention(some, keys, values, scale=scale, mask=mask))
    return mx.concatenate(pieces, axis=2)


def is_fused(width: int) -> bool:
    """Return whether the device fuses attention for heads of this width, without storing scores."""
    return mx.default_device().type == mx.DeviceType.gpu and width <= FUSED_WIDTHS[-1]


def rotation_of(angles: np.ndarray, parts: int = 1) -> Rotation:
    """Return the rotation by angles (patches, parts * pairs). parts: separately rotated parts of a head."""
    turned = mx.array(angles.astype(np.float32)).reshape(len(angles), 1, parts, 1, -1)
    return mx.cos(turned), mx.sin(turned)


def rotate(x: mx.array, rotation: Rotation) -> mx.array:
    """Rotate x (groups, patches, heads, width): pairs from the first and second half of each part.

    Computed in float32, as transformers does.
    """
    cos, sin = (table.reshape(*x.shape[:2], *table.shape[1:]) for table in rotation)
    pairs = x.astype(mx.float32).reshape(*x.shape[:3], cos.shape[3], 2, cos.shape[-1])
    first, second = pairs[..., :1, :], pairs[..., 1:, :]
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-2)
    return turned.reshape(x.shape).astype(x.dtype)


def places_of(grid: tuple[int, int], merge: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns (patches,) of a grid's patches; those of one token are side by side."""
    rows, columns = np.indices(grid)
    order = (grid[0] // merge, merge, grid[1] // merge, merge)
    return rows.reshape(order).swapaxes(1, 2).ravel(), columns.reshape(order).swapaxes(1, 2).ravel()


def frequencies(base: float, width: int) -> np.ndarray:
    """Return the rotation angles (width / 2,) per position for a part of `width` numbers."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
