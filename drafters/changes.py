"""What an answer changes in the text that it copies: these source tokens are said as those.

A change that puts tokens in the place of others is expected again after one success, for as long as that
goes well in this request. One that only adds or only leaves out is mostly made once (a docstring, a line
that is dropped), so it is expected from its second success on. What failed holds only between neighbours
where it was seen; what failed there too is forgotten.
"""

from dataclasses import dataclass, field

from drafters.occurrences import Ids

LONGEST_CHANGE = 8
"""Tokens on either side of a change that is worth learning."""

MAX_CHANGES = 256
"""Changes that are remembered for one text; the oldest goes first."""

_PATIENCE = 2  # more failures than successes at second places, after which one success is not enough


@dataclass(slots=True)
class Change:
    """Source tokens that were said otherwise.

    source, said: token ids, 1 to LONGEST_CHANGE each. sides: (token before, token after) in the source
    where it was seen. num_seen: times it was seen, without a failure between. num_needed: times it has to
    be. is_strict: it failed once, so it holds only between sides where it was seen.
    """

    source: tuple[int, ...]
    said: tuple[int, ...]
    num_needed: int
    num_seen: int = 0
    is_strict: bool = False
    sides: set[tuple[int, int]] = field(default_factory=set)


class Changes:
    """The changes known for one text, found by the source tokens that they replace."""

    def __init__(self) -> None:
        self._by_first: dict[int, list[Change]] = {}
        self._order: dict[tuple[int, ...], None] = {}
        self._luck = 0

    def __len__(self) -> int:
        return len(self._order)

    def at(self, source: Ids, place: int) -> Change | None:
        """The change to expect at a place of the source; the longest, if several."""
        known = self._by_first.get(source[place])
        if known is None:
            return None
        least = 2 if self._luck <= -_PATIENCE else 1
        for change in known:
            stop = place + len(change.source)
            if (
                change.num_seen >= least
                and change.num_seen >= change.num_needed
                and tuple(source[place:stop]) == change.source
                and (not change.is_strict or _sides(source, place, stop) in change.sides)
            ):
                return change
        return None

    def learn(self, source: Ids, start: int, stop: int, said: list[int]) -> None:
        """source[start:stop] was said like this; either may be empty, and what is too long is left out."""
        while stop > start and said and said[-1] == source[stop - 1]:
            stop -= 1
            said = said[:-1]
        if start >= 0 and stop - start == len(said):
            # As many tokens as before: one by one, so that two names next to each other are two changes.
            first = 0
            for at in range(len(said) + 1):
                if at == len(said) or source[start + at] == said[at]:
                    self._add(source, start + first, start + at, said[first:at], num_needed=1)
                    first = at + 1
        elif said and stop > start:
            self._add(source, start, stop, said, num_needed=1)
        elif start > 0:
            # Nothing on one side: the token before says where.
            self._add(source, start - 1, stop, [source[start - 1], *said], num_needed=2)

    def succeed(self, change: Change, source: Ids, place: int) -> None:
        """The change was expected at a place, and came."""
        change.sides.add(_sides(source, place, place + len(change.source)))
        self._luck += change.num_seen == 1
        change.num_seen += 1

    def fail(self, change: Change, source: Ids, place: int) -> None:
        """The change was expected at a place, and the source came unchanged."""
        change.sides.discard(_sides(source, place, place + len(change.source)))
        change.is_strict = True
        self._luck -= change.num_seen == 1
        if not change.sides:
            self._forget(change.source)

    def _add(self, source: Ids, start: int, stop: int, said: list[int], num_needed: int) -> None:
        if not (0 < stop - start <= LONGEST_CHANGE and 0 < len(said) <= LONGEST_CHANGE):
            return
        key, new = tuple(source[start:stop]), tuple(said)
        known = self._by_first.setdefault(key[0], [])
        change = next((change for change in known if change.source == key), None)
        if change is None:
            change = Change(key, new, num_needed)
            known.append(change)
            known.sort(key=lambda one: -len(one.source))
            self._order[key] = None
        elif change.said != new:
            change.said, change.num_needed, change.num_seen = new, num_needed, 0
            change.sides.clear()
        change.num_seen += 1
        change.sides.add(_sides(source, start, stop))
        if len(self._order) > MAX_CHANGES:
            self._forget(next(iter(self._order)))

    def _forget(self, key: tuple[int, ...]) -> None:
        del self._order[key]
        known = [change for change in self._by_first.pop(key[0]) if change.source != key]
        if known:
            self._by_first[key[0]] = known


def _sides(source: Ids, start: int, stop: int) -> tuple[int, int]:
    """The tokens on either side; -1 at an end."""
    return source[start - 1] if start else -1, source[stop] if stop < len(source) else -1
