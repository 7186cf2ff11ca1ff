"""Copying with a change: where an answer is in the text that it copies, and what it changes on the way.

A cursor stands at the token of the source that the answer should say next. When the answer says something
else, the cursor is lost: it looks for the place, near the one where it was lost, at which the answer goes
on copying. What lay between is a change (see changes.py): when the same source tokens come up again, the
change is drafted in their place.

    source   self . old _name = old      cursor waits at `old`
    answer   self . fresh = ...          lost at `old`, found again at `=`: (old, _name) is said as (fresh,)

A place found by one or two tokens may be wrong. So where the cursor was lost is remembered until the place
has proved right, and the search goes on from there if it has not.
"""

from array import array

from drafters.changes import Change, Changes
from drafters.occurrences import Ids

# All of these by `python -m bench.replay`.
_SETTLED = 4  # tokens in a row that make sure of a place near the one where the cursor was lost
_SETTLED_FAR = 8  # ... of a place that was found otherwise
_SURE = 12  # tokens in a row before the cursor was lost, for the change to be worth learning
_LONGEST_SEARCH = 96  # tokens said since the cursor was lost, after which it stays lost
_REACH = 256  # source tokens within which three said tokens must come up again
_NEAR_REACH = 96  # ... within which two are enough, and three if the cursor has jumped elsewhere
_BACK = 3  # source tokens before the place where it was lost that are searched too
_SHORT_REACH = 4  # source tokens within which one token is enough


class CopyCursor:
    """Follows an answer through the source that it copies.

    source: token ids; may grow at its end meanwhile. learns: whether it learns changes and drafts them.
    place: of the next token to be copied, in [0, len(source)]; None before it was ever set, and when lost.
    run: tokens in a row that came as expected since the cursor was set or found again.
    """

    def __init__(self, source: Ids, learns: bool = True) -> None:
        self.source = source
        self.place: int | None = None
        self.run = 0
        self._learns = learns
        self._changes = Changes()
        self._has_changes = False
        self._change: Change | None = None  # being said at `place`
        self._num_said = 0  # of its tokens
        self._lost_at: int | None = None  # where the answer left the source, until found for sure
        self._said: list[int] = []  # by the answer since then
        self._was_sure = False  # of its place, then
        self._settled = _SETTLED  # run from which on the place is sure
        self._has_jumped = False
        self._unproved: tuple[int, int, list[int]] | None = None  # change to be learned at the next token

    def set(self, place: int, run: int) -> None:
        """Go to a place that was found otherwise, run tokens before which agree with the answer."""
        self.place, self.run = place, run
        self._change = None
        self._settled, self._has_jumped = run + _SETTLED_FAR, True

    def advance(self, token: int) -> None:
        """The answer said one more token."""
        if self._lost_at is not None:
            self._said.append(token)
        if self.place is None or not self._follow(token):
            if self._lost_at is not None:
                self._search()
            return
        self.run += 1
        if self._unproved is not None:
            self._learn()
        if self._lost_at is None:
            return
        if self.run >= self._settled:
            self._lost_at = None
            self._said.clear()
        elif self._has_jumped:
            # Near where it was lost is still the likelier place, if the answer fits both.
            self._search_near()

    def draft(self, limit: int) -> list[int]:
        """What the answer says next if it goes on copying: at most limit tokens, fewer at the end."""
        if self.place is None:
            return []
        change = self._change
        if change is None:
            return self.draft_from(self.place, limit)
        drafted = list(change.said[self._num_said :])
        if len(drafted) < limit:
            drafted += self.draft_from(self.place + len(change.source), limit - len(drafted))
        return drafted[:limit]

    def draft_from(self, place: int, limit: int) -> list[int]:
        """What an answer says that copies the source from a place on, with the changes that are known."""
        source, changes = self.source, self._changes
        if not self._has_changes:
            return source[place : place + limit].tolist()
        drafted: list[int] = []
        size = len(source)
        while place < size and len(drafted) < limit:
            change = changes.at(source, place)
            if change is None:
                drafted.append(source[place])
                place += 1
            else:
                drafted += change.said
                place += len(change.source)
        return drafted[:limit]

    def _follow(self, token: int) -> bool:
        """Take a token that was expected. If it was not, the cursor is lost, and False."""
        place, source = self.place, self.source
        assert place is not None
        if place >= len(source):
            self.place = None
            return False
        change = self._change
        if change is None and self._has_changes:
            change, self._num_said = self._changes.at(source, place), 0
        if change is not None:
            return self._follow_change(change, place, token)
        if source[place] == token:
            self.place = place + 1
            return True
        self._lose(place, [token])
        return False

    def _follow_change(self, change: Change, place: int, token: int) -> bool:
        num_said = self._num_said
        if change.said[num_said] == token:
            self._num_said += 1
            self._change = change
            if self._num_said == len(change.said):
                self._changes.succeed(change, self.source, place)
                self.place, self._change = place + len(change.source), None
            return True
        self._change = None
        if change.source[: num_said + 1] == (*change.said[:num_said], token):
            # Here the source comes unchanged, or at least not changed like this.
            self._changes.fail(change, self.source, place)
            self.place = place + num_said + 1
            return True
        self._lose(place, [*change.said[:num_said], token])
        return False

    def _lose(self, place: int, said: list[int]) -> None:
        if self._lost_at is None:
            self._lost_at, self._said = place, said
            self._was_sure = self.run >= _SURE
        self.place, self.run, self._unproved = None, 0, None

    def _search(self) -> None:
        """Find where copying goes on, by the last tokens that were said since the cursor was lost."""
        lost_at, said = self._lost_at, self._said
        assert lost_at is not None
        if len(said) > _LONGEST_SEARCH:
            self._lost_at = None
            said.clear()
            return
        if len(said) > 1:
            first = max(lost_at - _BACK, 0)
            two = self._find(said[-2:], first, lost_at + _REACH)
            # Where two tokens do not come up, three do not either.
            three = (
                self._find(said[-3:], first, lost_at + _REACH) if two is not None and len(said) > 2 else None
            )
            if three is not None:
                self._found(three, 3)
                return
            if two is not None and two + 2 <= lost_at + _NEAR_REACH:
                self._found(two, 2)
                return
        self._search_closely(lost_at, said[-1], len(said))

    def _search_near(self) -> None:
        lost_at, said = self._lost_at, self._said
        assert lost_at is not None
        if len(said) > 2:
            start = self._find(said[-3:], max(lost_at - _BACK, 0), lost_at + _NEAR_REACH)
            if start is not None:
                self._found(start, 3)

    def _search_closely(self, lost_at: int, token: int, num_said: int) -> None:
        """One token is little evidence. Take it where few were said and few left out, as many if possible."""
        size = len(self.source)
        if num_said <= _SHORT_REACH:
            for start in (lost_at + num_said - 1, *range(lost_at, lost_at + _SHORT_REACH)):
                if start < size and self.source[start] == token:
                    self._found(start, 1)
                    return
        # Or where an insertion ends like the text before it, as lines do.
        if num_said > 1 and lost_at > 0 and self.source[lost_at - 1] == token:
            self._found(lost_at - 1, 1)

    def _find(self, tokens: list[int], start: int, stop: int) -> int | None:
        window, needle = self.source[start:stop].tobytes(), array("I", tokens).tobytes()
        at = window.find(needle)
        while at >= 0 and at % 4:  # found across the edges of tokens
            at = window.find(needle, at + 1)
        return None if at < 0 else start + at // 4

    def _found(self, start: int, size: int) -> None:
        """Copying went on at source[start:start + size]."""
        assert self._lost_at is not None
        self.place, self.run, self._change = start + size, size, None
        self._settled, self._has_jumped = _SETTLED, False
        self._unproved = None
        if self._learns and self._was_sure and start >= self._lost_at:
            self._unproved = self._lost_at, start, self._said[: len(self._said) - size]
            if size > 1:
                self._learn()

    def _learn(self) -> None:
        assert self._unproved is not None
        start, stop, said = self._unproved
        self._unproved = None
        self._changes.learn(self.source, start, stop, said)
        self._has_changes = len(self._changes) > 0
