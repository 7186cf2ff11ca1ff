"""Follow an answer through the text that it copies, and learn its changes.

A cursor points at the source token that the answer should have next. When the answer has another token, the
cursor is lost: it searches near the position where it was lost for the point at which the answer resumes
copying. The tokens skipped on either side form a change (see Change). When the same source tokens come up
again, the change is drafted in their place.

    source   self . old _name = old      the cursor points at `old`
    answer   self . fresh = ...          lost at `old`, resumes at `=`; change: (old, _name) -> (fresh,)

A position found by matching one or two tokens may be wrong. So the cursor remembers where it was lost until
the new position is confirmed, and searches from there again if it is not.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from reprise.drafters.base import SLICE_TOKENS, Slices, finish
from reprise.drafters.copies.occurrences import LONGEST, MAX_MATCH_TOKENS, Ids, Match, Occurrences, TailHashes

_MIN_CAPACITY = 4096
_GROW_EVERY = 16  # tokens between two slices of growing, which are done long before there is no room


class GrowingText:
    """A text whose prompt is loaded and indexed in slices while tokens are being appended.

    prompt: the first tokens, loaded by index_tokens()' work.
    tokens: all tokens loaded so far; grows in place. index: of these tokens; may lag behind.
    tail: hashes of the text's end.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens: Ids = array("I")
        self.index = Occurrences(self.tokens, _capacity_for(len(prompt)))
        self._growing: Slices | None = None
        self.tail = TailHashes(prompt)
        self._prompt: Sequence[int] = prompt
        # The text's end, and the tokens after the prompt, until all of that is taken in.
        self._end: Ids = array("I", prompt[-MAX_MATCH_TOKENS:])
        self._later: list[int] = []
        self._is_taken = False

    @property
    def end(self) -> Ids:
        """At least the last MAX_MATCH_TOKENS tokens of the text, or all there are."""
        return self.tokens if self._is_taken else self._end

    def take_tokens(self) -> Slices:
        """Return the work of loading the rest of the prompt without indexing it."""
        while not self._is_taken:
            yield self._take_slice()

    def _take_slice(self) -> int:
        """Load the next tokens of the prompt; return how many."""
        part = self._prompt[len(self.tokens) : len(self.tokens) + SLICE_TOKENS]
        self.tokens += array("I", part)
        if len(self.tokens) == len(self._prompt):
            self._is_taken, self._prompt = True, ()
            self.tokens.extend(self._later)
            self._later = []
            if (capacity := _capacity_for(len(self.tokens))) > self.index.capacity:
                # The answer is long already, so this begins anew.
                self.index = Occurrences(self.tokens, capacity)
        return len(part)

    def index_tokens(self) -> Slices:
        """Return the work of loading the rest of the prompt and indexing all tokens."""
        yield from self.index.touch()
        while True:
            if not self._is_taken:
                self._take_slice()
            if not (num_tokens := self._index_slice(self.index)):
                return
            yield num_tokens

    def _index_slice(self, index: Occurrences) -> int:
        """Add the next tokens to a lagging index; return how many."""
        start, tokens = index.end, self.tokens
        num_tokens = min(len(tokens) - start, SLICE_TOKENS)
        index.extend(tokens[start : start + num_tokens], tokens[max(0, start - LONGEST) : start])
        return num_tokens

    def _grow(self) -> Slices:
        """Return the work of building an index of twice the capacity, which then replaces this one."""
        larger = Occurrences(self.tokens, 2 * self.index.capacity)
        yield from larger.touch()
        while num_tokens := self._index_slice(larger):
            yield num_tokens
        self.index, self._growing = larger, None

    def append(self, token: int) -> None:
        """Append a token."""
        hashes = self.tail.append(token)
        if not self._is_taken:
            self._later.append(token)
            self._end.append(token)
            del self._end[:-MAX_MATCH_TOKENS]
            return
        index, tokens = self.index, self.tokens
        tokens.append(token)
        # An index that is behind gets to this token later.
        if index.end == len(tokens) - 1:
            index.append(hashes)
        if len(tokens) >= index.capacity - index.capacity // 8:
            self._growing = self._growing or self._grow()
            if len(tokens) + 2 >= index.capacity:
                finish(self._growing)
            elif len(tokens) % _GROW_EVERY == 0:
                next(self._growing, None)

    def find_earlier(self) -> Match | None:
        """Return the longest earlier occurrence of the text's end, in the indexed part of the text."""
        if self.index.end == len(self.tokens) and self._is_taken:
            return self.index.find_earlier(self.tokens)
        return self.index.find(self.tail.hashes, self.end)


def _capacity_for(num_tokens: int) -> int:
    """Return an index capacity that lets the text grow by at least a quarter."""
    return max(_MIN_CAPACITY, 1 << (num_tokens + num_tokens // 4).bit_length())


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
    is_strict: whether the change has failed, and so is expected only between known neighbors.
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
        """Record that a change was expected at a position and the answer made it."""
        change.neighbours.add(_neighbours(source, position, position + len(change.source)))
        self._net_successes += change.num_seen == 1
        change.num_seen += 1

    def fail(self, change: Change, source: Ids, position: int) -> None:
        """Record that a change was expected at a position but the answer copied the source."""
        change.neighbours.discard(_neighbours(source, position, position + len(change.source)))
        change.is_strict = True
        self._net_successes -= change.num_seen == 1
        # Not its successor, if it was replaced meanwhile.
        is_known = any(one is change for one in self._by_first.get(change.source[0], ()))
        if is_known and not change.neighbours:
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
            # A new one: the cursor may be in the middle of the old one's replacement.
            at = known.index(change)
            known[at] = change = Change(key, new, num_needed, is_strict=change.is_strict)
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


MIN_JUMP_TOKENS = 4
"""Minimum length of a match to which a lost cursor jumps."""

# All of these were chosen with `reprise bench replay`.
_CONFIRM_TOKENS = 4  # matching tokens that confirm a position found near where the cursor was lost
_CONFIRM_JUMP_TOKENS = 8  # matching tokens that confirm a position set by jump()
_LEARN_TOKENS = 12  # matching tokens before the cursor was lost, for the change to be learned
_MAX_SEARCH_TOKENS = 96  # answer tokens without a match after which the search is given up
_REACH_THREE = 256  # source tokens searched for the last three answer tokens
_REACH_TWO = 96  # source tokens searched for the last two, or for three if the cursor has jumped elsewhere
_REACH_ONE = 4  # source tokens searched for the last one
_REACH_BACK = 3  # source tokens searched before the position where the cursor was lost


class CopyCursor:
    """A cursor that follows an answer through the source that it copies.

    source: token ids of the copied text; may grow at its end. stop: position behind the part of it that is
        copied; None for its end.
    learn_changes: whether changes are learned and drafted.
    position: of the source token expected next, in [0, len(source)]; None until first set, and when lost.
    run: number of consecutive tokens that came as expected since the cursor was set or resumed.
    """

    def __init__(self, source: Ids, learn_changes: bool = True) -> None:
        self.source = source
        self.stop: int | None = None
        self.position: int | None = None
        self.run = 0
        self._learn_changes = learn_changes
        self._changes = Changes()
        self._has_changes = False
        # The change in progress at `position`, and how many of its replacement tokens have come.
        self._change: Change | None = None
        self._num_replaced = 0
        # Where the answer left which source, until the new position is confirmed; the answer's tokens since
        # then; and whether the run before was long enough to learn from.
        self._lost_at: int | None = None
        self._lost_in: tuple[Ids, int | None] = source, None
        self._since_lost: list[int] = []
        self._is_learnable = False
        # The run at which the present position is confirmed, and whether it was set by jump().
        self._confirm_at = _CONFIRM_TOKENS
        self._has_jumped = False
        # Arguments for Changes.learn, kept until one more token matches.
        self._unconfirmed_change: tuple[int, int, list[int]] | None = None

    def jump(self, source: Ids, position: int, stop: int | None, run: int) -> None:
        """Move to a position that the caller found, where the preceding `run` tokens match the answer.

        source, stop: the text with that position, and where its copied part ends; see CopyCursor.
        """
        self.source, self.position, self.stop, self.run = source, position, stop, run
        self._change = None
        self._confirm_at, self._has_jumped = run + _CONFIRM_JUMP_TOKENS, True

    def advance(self, token: int) -> None:
        """Move past the answer's next token, or search for the point where copying resumes."""
        if self._lost_at is not None:
            self._since_lost.append(token)
        if self.position is None or not self._match(token):
            if self._lost_at is not None:
                self._search()
            return
        self.run += 1
        if self._unconfirmed_change is not None:
            self._learn()
        if self._lost_at is None:
            return
        if self.run >= self._confirm_at:
            self._lost_at = None
            self._since_lost.clear()
        elif self._has_jumped:
            # If the answer also fits near the position where the cursor was lost, that is more likely.
            self._search_near()

    def draft(self, limit: int) -> list[int]:
        """Return up to limit tokens that come next if the answer keeps copying; fewer at the source's end."""
        if self.position is None:
            return []
        change = self._change
        if change is None:
            return self.draft_in(self.source, self.position, self.stop, limit)
        drafted = list(change.replacement[self._num_replaced :])
        if len(drafted) < limit:
            start = self.position + len(change.source)
            drafted += self.draft_in(self.source, start, self.stop, limit - len(drafted))
        return drafted[:limit]

    def draft_in(self, source: Ids, position: int, stop: int | None, limit: int) -> list[int]:
        """Return up to limit tokens of source[position:stop], with the known changes applied."""
        size, changes = len(source) if stop is None else stop, self._changes
        if not self._has_changes:
            return source[position : min(position + limit, size)].tolist()
        drafted: list[int] = []
        while position < size and len(drafted) < limit:
            change = changes.expected_at(source, position)
            if change is None:
                drafted.append(source[position])
                position += 1
            else:
                drafted += change.replacement
                position += len(change.source)
        return drafted[:limit]

    def _match(self, token: int) -> bool:
        """Move past a token if it was expected. Otherwise mark the cursor as lost and return False."""
        position, source = self.position, self.source
        assert position is not None
        if position >= (len(source) if self.stop is None else self.stop):
            self.position = None
            return False
        change = self._change
        if change is None and self._has_changes:
            change, self._num_replaced = self._changes.expected_at(source, position), 0
        if change is not None:
            return self._match_change(change, position, token)
        if source[position] == token:
            self.position = position + 1
            return True
        self._lose(position, [token])
        return False

    def _match_change(self, change: Change, position: int, token: int) -> bool:
        num_replaced = self._num_replaced
        if change.replacement[num_replaced] == token:
            self._num_replaced += 1
            self._change = change
            if self._num_replaced == len(change.replacement):
                self._changes.succeed(change, self.source, position)
                self.position, self._change = position + len(change.source), None
            return True
        self._change = None
        if change.source[: num_replaced + 1] == (*change.replacement[:num_replaced], token):
            # The answer copies the source here, unchanged so far.
            self._changes.fail(change, self.source, position)
            self.position = position + num_replaced + 1
            return True
        self._lose(position, [*change.replacement[:num_replaced], token])
        return False

    def _lose(self, position: int, tokens: list[int]) -> None:
        """Mark the cursor as lost at a position where the answer had these tokens instead."""
        if self._lost_at is None:
            self._lost_at, self._since_lost = position, tokens
            self._lost_in = self.source, self.stop
            self._is_learnable = self.run >= _LEARN_TOKENS
        self.position, self.run, self._unconfirmed_change = None, 0, None

    def _search(self) -> None:
        """Search for the point where copying resumes, by the last tokens of the answer."""
        lost_at, since_lost = self._lost_at, self._since_lost
        assert lost_at is not None
        if len(since_lost) > _MAX_SEARCH_TOKENS:
            self._lost_at = None
            since_lost.clear()
            return
        if len(since_lost) > 1:
            first = max(lost_at - _REACH_BACK, 0)
            two = self._find(since_lost[-2:], first, lost_at + _REACH_THREE)
            # If the last two tokens do not occur, the last three do not either.
            three = (
                self._find(since_lost[-3:], first, lost_at + _REACH_THREE)
                if two is not None and len(since_lost) > 2
                else None
            )
            if three is not None:
                self._resume(three, 3)
                return
            if two is not None and two + 2 <= lost_at + _REACH_TWO:
                self._resume(two, 2)
                return
        self._search_one(lost_at, since_lost[-1], len(since_lost))

    def _search_near(self) -> None:
        """Search near the position where the cursor was lost, after it has jumped elsewhere."""
        lost_at, since_lost = self._lost_at, self._since_lost
        assert lost_at is not None
        if len(since_lost) > 2:
            start = self._find(since_lost[-3:], max(lost_at - _REACH_BACK, 0), lost_at + _REACH_TWO)
            if start is not None:
                self._resume(start, 3)

    def _search_one(self, lost_at: int, token: int, num_since_lost: int) -> None:
        """Search for a single token.

        One token is weak evidence, so it counts only within few answer tokens and few source tokens. A
        replacement of equal length is tried first.
        """
        source, stop = self._lost_in
        size = len(source) if stop is None else stop
        if num_since_lost <= _REACH_ONE:
            for start in (lost_at + num_since_lost - 1, *range(lost_at, lost_at + _REACH_ONE)):
                if start < size and source[start] == token:
                    self._resume(start, 1)
                    return
        # An insertion often ends with the token that also stands before it, such as a line break.
        if num_since_lost > 1 and lost_at > 0 and source[lost_at - 1] == token:
            self._resume(lost_at - 1, 1)

    def _find(self, tokens: list[int], start: int, stop: int) -> int | None:
        source, end = self._lost_in
        stop = stop if end is None else min(stop, end)
        window, needle = source[start:stop].tobytes(), array("I", tokens).tobytes()
        at = window.find(needle)
        while at >= 0 and at % 4:  # a match of bytes that does not start at a token
            at = window.find(needle, at + 1)
        return None if at < 0 else start + at // 4

    def _resume(self, start: int, size: int) -> None:
        """Resume after source[start : start + size], which match the answer's last tokens."""
        assert self._lost_at is not None
        self.source, self.stop = self._lost_in
        self.position, self.run, self._change = start + size, size, None
        self._confirm_at, self._has_jumped = _CONFIRM_TOKENS, False
        self._unconfirmed_change = None
        if self._learn_changes and self._is_learnable and start >= self._lost_at:
            replacement = self._since_lost[: len(self._since_lost) - size]
            self._unconfirmed_change = self._lost_at, start, replacement
            if size > 1:
                self._learn()

    def _learn(self) -> None:
        assert self._unconfirmed_change is not None
        start, stop, replacement = self._unconfirmed_change
        self._unconfirmed_change = None
        self._changes.learn(self.source, start, stop, replacement)
        self._has_changes = len(self._changes) > 0
