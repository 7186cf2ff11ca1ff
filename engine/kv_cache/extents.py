"""Decide how many slots and columns a buffer has: how far it grows, and when it shrinks."""

GROWTH_TOKENS = 256
"""The number of columns of a buffer of full attention is a multiple of this."""

Extent = tuple[int, int]
"""The number of slots and the number of columns of a buffer. Their product is its number of *cells*."""


def grow_extent(extent: Extent, needed: Extent, max_cells: int | None) -> Extent:
    """Return the extent to grow buffers to, so that they have at least the slots and columns needed.

    Growing copies the buffers, so it has to be rare: slots double and columns grow by a quarter. If that
    makes more than max_cells cells, the buffers grow only as far as needed. max_cells: None for no limit.
    """
    (slots, columns), (num_slots, num_columns) = extent, needed
    if num_slots > slots:
        slots = max(num_slots, 2 * slots)
    if num_columns > columns:
        columns = round_columns(max(num_columns, columns + columns // 4))
    if max_cells is not None and slots * columns > max_cells:
        return max(extent[0], num_slots), max(extent[1], round_columns(num_columns))
    return slots, columns


def grow_slots(slots: int, num_slots: int) -> int:
    """Return the slots to grow a window's buffers to, at least num_slots.

    At most max_slots(num_slots), unless the buffers have more already.
    """
    return slots if num_slots <= slots else max(num_slots, max_slots(slots))


def max_slots(num_rows: int) -> int:
    """Return the most slots of a window's buffers. These slots are large, so that few are spare."""
    return num_rows + num_rows // 4


def shrink_extent(extent: Extent, needed: Extent) -> Extent:
    """Return the extent to shrink buffers to; extent itself if shrinking would free too little."""
    (slots, columns), (num_slots, num_columns) = extent, needed
    # Slots shrink at a quarter of their number, columns at a half, and both keep some spare, so that buffers
    # which have shrunk do not have to grow again at once.
    if num_slots <= slots // 4:
        slots = 2 * num_slots
    if num_columns <= columns // 2:
        columns = min(columns, round_columns(num_columns + num_columns // 4))
    return slots, columns


def round_columns(num_columns: int) -> int:
    """Round a number of columns up to a multiple of GROWTH_TOKENS, at least one multiple."""
    return max(1, -(-num_columns // GROWTH_TOKENS)) * GROWTH_TOKENS
