"""Learn how an answer changes the text that it copies: which source tokens it replaces, and by what.

A replacement is expected again after it was seen once, as long as such guesses succeed in this request. A
pure insertion or deletion is usually made only once (a new docstring, a dropped line), so it is expected only
after it was seen twice. A change that failed is expected only between the neighboring tokens where it was
seen. One that failed there too is forgotten.
"""

from dataclasses import dataclass, field

from reprise.drafters.copies.occurrences import Ids

MAX_CHANGE_TOKENS = 8
"""Maximum length of either side of a change that is learned, in tokens."""

MAX_CHANGES = 256
"""Maximum number of changes kept for one text; the oldest is dropped first."""

_MAX_NET_FAILURES = 2
"""If changes seen once failed this many times more often than they succeeded, two sightings are needed."""


@dataclass(slots=True)
class Change:
    """Source tokens and the tokens that the answer has in their place.

    source, replacement: token ids, 1 to MAX_CHANGE_TOKENS each.
    num_needed: how often the change must have been seen before it is expected.
    num_seen: how often it was seen.
    is_strict: whether the change failed before, so that it is expected only between known neighbors.
    neighbours: (token before, token after) in the source, wherever the change was seen.
    """

    source: tuple[int, ...]
    replacement: tuple[int, ...]
    num_needed: int
    num_seen: int = 0
    is_strict: bool = False
    neighbours: set[tuple[int, int]] = field(default_factory=set)


class Changes:
    """The changes learned for one text, found by the source tokens that they replace."""

    def __init__(self) -> None:
        self._by_first: dict[int, list[Change]] = {}
        self._order: dict[tuple[int, ...], None] = {}
        # Successes minus failures of changes that had been seen once.
        self._net_successes = 0

    def __len__(self) -> int:
        return len(self._order)

    def expected_at(self, source: Ids, position: int) -> Change | None:
        """Return the change to expect at a position of the source: the longest, if several fit."""
        known = self._by_first.get(source[position])
        if known is None:
            return None
        min_seen = 2 if self._net_successes <= -_MAX_NET_FAILURES else 1
        for change in known:
            stop = position + len(change.source)
            if (
                change.num_seen >= min_seen
                and change.num_seen >= change.num_needed
                and tuple(source[position:stop]) == change.source
                and (not change.is_strict or _neighbours(source, position, stop) in change.neighbours)
            ):
                return change
        return None

    def learn(self, source: Ids, start: int, stop: int, replacement: list[int]) -> None:
        """Learn that the answer replaced source[start:stop].

        Either side may be empty. A change with a side longer than MAX_CHANGE_TOKENS is ignored.
        """
        while stop > start and replacement and replacement[-1] == source[stop - 1]:
            stop -= 1
            replacement = replacement[:-1]
        if start >= 0 and stop - start == len(replacement):
            # Equally long: compare token by token, so that two adjacent names become two changes.
            first = 0
            for at in range(len(replacement) + 1):
                if at == len(replacement) or source[start + at] == replacement[at]:
                    self._add(source, start + first, start + at, replacement[first:at], num_needed=1)
                    first = at + 1
        elif replacement and stop > start:
            self._add(source, start, stop, replacement, num_needed=1)
        elif start > 0:
            # One side is empty, so the token before is added to both sides to mark the position.
            self._add(source, start - 1, stop, [source[start - 1], *replacement], num_needed=2)

    def succeed(self, change: Change, source: Ids, position: int) -> None:
        """Note that a change was expected at a position and the answer made it."""
        change.neighbours.add(_neighbours(source, position, position + len(change.source)))
        self._net_successes += change.num_seen == 1
        change.num_seen += 1

    def fail(self, change: Change, source: Ids, position: int) -> None:
        """Note that a change was expected at a position and the answer copied the source unchanged."""
        change.neighbours.discard(_neighbours(source, position, position + len(change.source)))
        change.is_strict = True
        self._net_successes -= change.num_seen == 1
        if not change.neighbours:
            self._forget(change.source)

    def _add(self, source: Ids, start: int, stop: int, replacement: list[int], num_needed: int) -> None:
        if not (0 < stop - start <= MAX_CHANGE_TOKENS and 0 < len(replacement) <= MAX_CHANGE_TOKENS):
            return
        key, new = tuple(source[start:stop]), tuple(replacement)
        known = self._by_first.setdefault(key[0], [])
        change = next((change for change in known if change.source == key), None)
        if change is None:
            change = Change(key, new, num_needed)
            known.append(change)
            known.sort(key=lambda one: -len(one.source))
            self._order[key] = None
        elif change.replacement != new:
            change.replacement, change.num_needed, change.num_seen = new, num_needed, 0
            change.neighbours.clear()
        change.num_seen += 1
        change.neighbours.add(_neighbours(source, start, stop))
        if len(self._order) > MAX_CHANGES:
            self._forget(next(iter(self._order)))

    def _forget(self, key: tuple[int, ...]) -> None:
        del self._order[key]
        known = [change for change in self._by_first.pop(key[0]) if change.source != key]
        if known:
            self._by_first[key[0]] = known


def _neighbours(source: Ids, start: int, stop: int) -> tuple[int, int]:
    """Return the tokens before and after source[start:stop]; -1 at an end of the source."""
    return source[start - 1] if start else -1, source[stop] if stop < len(source) else -1
