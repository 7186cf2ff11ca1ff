"""Divide the rows of full attention into groups of similar length, each with buffers of its own.

In a buffer every row takes as many columns as the longest, in memory and time. So a group holds rows of up to
`limit` tokens, and each group's limit is twice the one before. A row that outgrows its group is copied into
the next.

All layers still take all rows at once, so weights are read once. Only attention is computed group by group.
mlx-lm's models know nothing of groups. Their caches return keys, values and masks as PerGroup objects, which
models pass on unchanged to attention. patches.by_group() replaces MLX's attention by one that splits them. If
probes.py finds that a model does more with such objects, its whole attention layers run group by group. If
that fails too, all its rows share one group.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from reprise.engine.kv_cache.columns import Columns, RowLengths

FIRST_LIMIT = 2048
"""Tokens that a row of the first group may have. Each group is more work in every layer, so there are few."""


def find_limit(num_tokens: int, first_limit: int | None) -> int | None:
    """Return the limit of the group for a row of num_tokens; None (no limit) without a first limit."""
    if first_limit is None:
        return None
    limit = first_limit
    while limit < num_tokens:
        limit *= 2
    return limit


@dataclass(eq=False, slots=True)
class Group:
    """Rows that share buffers.

    limit: the most tokens of each row; None for no limit.
    rows: the row of each slot. lengths, columns: as for a batch of these rows alone.
    """

    limit: int | None
    rows: list[int] = field(default_factory=list)
    lengths: RowLengths = field(default_factory=RowLengths)
    columns: Columns = field(init=False)

    def __post_init__(self) -> None:
        self.columns = Columns(self.lengths)


class PerGroup:
    """One value per group instead of one for all rows: an array, a mask, or several arrays."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class Groups:
    """The groups of the rows of a batch, for all layers with full attention.

    shared: the lengths of all rows of the batch, and the current forward's width.
    only: the group, if it has all rows in the batch's order, so that nothing is split; else None.
    """

    def __init__(self, shared: RowLengths, first_limit: int | None) -> None:
        """Make no groups yet. first_limit: the most tokens of rows in the first group; None for one group."""
        self.shared = shared
        self._first_limit = first_limit
        self._groups: list[Group] = []
        self._places: list[tuple[Group, int] | None] = []
        self._max_cells: int | None = None
        self.only: Group | None = None
        self._is_laid_out = False
        self._picks: list[mx.array | slice] = []
        self._order: mx.array | None = None

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def add(self) -> None:
        """Append a row that is in no group yet."""
        self._places.append(None)

    def has(self, row: int) -> bool:
        """Whether a row is in a group."""
        return self._places[row] is not None

    def place_of(self, row: int) -> tuple[Group, int]:
        """Return a row's group and slot. The row must be in a group."""
        place = self._places[row]
        assert place is not None
        return place

    def put_in(self, row: int, room: int = 0) -> None:
        """Append a row to the group for its length plus room. The caller then writes its tokens there."""
        length = self.shared.lengths[row]
        limit = find_limit(length + room, self._first_limit)
        group = next((group for group in self._groups if group.limit == limit), None)
        if group is None:
            group = Group(limit)
            # Until the budget says more, it has no room to grow ahead of need.
            group.columns.max_cells = None if self._max_cells is None else 0
            self._groups.append(group)
        slot = len(group.rows)
        group.rows.append(row)
        group.lengths.add()
        group.columns.add()
        group.lengths.lengths[slot] = length
        group.columns.place(slot)
        self._places[row] = group, slot
        self._is_laid_out = False

    def may_stay(self, row: int) -> bool:
        """Whether a row's group is still the right one for the row's length."""
        group, _ = self.place_of(row)
        return group.limit == find_limit(self.shared.lengths[row], self._first_limit)

    def replace(self, row: int) -> None:
        """Give a row its new length in its present slot; the caller then writes the row's tokens there."""
        group, slot = self.place_of(row)
        group.lengths.lengths[slot] = self.shared.lengths[row]
        group.columns.place(slot)

    def take_out(self, row: int) -> None:
        """Remove a row from its group. The row of the last slot takes its slot; an empty group is removed."""
        group, slot = self.place_of(row)
        self._places[row] = None
        group.columns.remove(slot)
        group.lengths.remove(slot)
        moved = group.rows.pop()
        if moved != row:
            group.rows[slot] = moved
            self._places[moved] = group, slot
        if not group.rows:
            self._groups.remove(group)
        self._is_laid_out = False

    def remove(self, row: int) -> None:
        """Remove a row that is in no group; the last row takes its index."""
        moved = self._places.pop()
        if row < len(self._places):
            self._places[row] = moved
            if moved:
                group, slot = moved
                group.rows[slot] = row
        self._is_laid_out = False

    def set_length(self, row: int, length: int) -> None:
        """Set the length of a row that was rolled back."""
        group, slot = self.place_of(row)
        group.lengths.lengths[slot] = length

    def outgrown(self, width: int) -> list[int]:
        """Return the rows to move to a larger group before a forward of this width."""
        rows: list[int] = []
        if all(g.limit is None or max(g.lengths.lengths) + width <= g.limit for g in self._groups):
            return rows
        for row in range(len(self._places)):
            group, slot = self.place_of(row)
            longest = group.lengths.lengths[slot] + width
            if group.limit is None or longest <= group.limit:
                continue
            limit = find_limit(longest, self._first_limit)
            if len(group.rows) == 1 and all(other.limit != limit for other in self._groups):
                group.limit = limit
            else:
                rows.append(row)
        return rows

    def begin_forward(self) -> None:
        """Compute the groups' lengths and columns for the next forward, after shared.begin_forward()."""
        if not self._is_laid_out:
            self._lay_out()
        for group in self._groups:
            if self.only:
                group.lengths.follow(self.shared)
            else:
                widths = [self.shared.widths[row] for row in group.rows]
                ranks = [self.shared.ranks[row] for row in group.rows] if self.shared.ranks else ()
                group.lengths.begin_forward(widths, self.shared.width, ranks)
            group.columns.begin_forward()

    def _lay_out(self) -> None:
        """Find how to split and join arrays of all rows. Valid until rows come, go or move."""
        order = [row for group in self._groups for row in group.rows]
        in_order = list(range(len(order)))
        self.only = self._groups[0] if len(self._groups) == 1 and order == in_order else None
        self._is_laid_out = True
        self._picks = [_pick(group.rows) for group in self._groups]
        self._order = None if order == in_order else mx.array(sorted(in_order, key=order.__getitem__))

    def end_forward(self) -> None:
        """Add the widths to the groups' lengths, after the forward's graph has been built."""
        for group in self._groups:
            group.lengths.end_forward()
            group.columns.end_forward()

    def split(self, array: mx.array) -> list[mx.array]:
        """Split an array (rows, ...) into each group's part, in the order of the group's slots."""
        return [array[pick] for pick in self._picks]

    def join(self, parts: list[mx.array]) -> mx.array:
        """Join the parts of all groups to an array (rows, ...), in the order of rows."""
        joined = mx.concatenate(parts)
        return joined if self._order is None else joined[self._order]

    def limit_growth(self, max_cells: int, needed_cells: Callable[[Group], int]) -> None:
        """Divide max_cells (slots times columns) among the groups.

        Each group gets the cells that needed_cells() returns for it, and an equal part of those left over.
        """
        self._max_cells = max_cells
        cells = list(map(needed_cells, self._groups))
        for group, num_cells in zip(self._groups, cells, strict=True):
            group.columns.max_cells = num_cells + max(0, max_cells - sum(cells)) // len(cells)


def _pick(rows: list[int]) -> mx.array | slice:
    """Return an index of these rows into an array of all rows: if possible a slice, which copies nothing."""
    first = rows[0]
    if rows == list(range(first, first + len(rows))):
        return slice(first, first + len(rows))
    return mx.array(rows)


def count_cells(spans: Sequence[tuple[int, int]], columns: Sequence[int], first_limit: int | None) -> int:
    """Return an upper bound of the cells (slots times columns) that rows take in their groups in a step.

    spans: (rows,) the least and the most tokens that each row may have. If they belong to different groups,
        the row may move during the step, and counts in both.
    columns: (rows,) the columns that each row needs.
    """
    by_limit: dict[int | None, tuple[int, int]] = {}
    for (shortest, longest), num_columns in zip(spans, columns, strict=True):
        limit = find_limit(shortest, first_limit)
        while True:
            num_rows, most = by_limit.get(limit, (0, 0))
            by_limit[limit] = num_rows + 1, max(most, num_columns)
            if limit is None or limit >= longest:
                break
            limit *= 2
    return sum(num_rows * most for num_rows, most in by_limit.values())
