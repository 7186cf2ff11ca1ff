"""The drafter protocol. This is the only file of the package that the engine depends on.

A drafter proposes the next tokens of a sequence, from text seen earlier. It decides nothing: the target
model samples every drafted position itself, and only tokens that it would have generated anyway are kept.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

SLICE_TOKENS = 512
"""Maximum number of tokens that one slice of work may index: about .06 ms where arrays do it."""

Slices: TypeAlias = Iterator[int]
"""Work in slices: each next() does one slice and returns the number of tokens that it took, at most
SLICE_TOKENS. A slice takes about .06 ms and at most .12, however long the text is."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A form that answers fill in, such as a call of a tool: fixed text, a value, fixed text, and so on.

    fixed: (n + 1,) the token ids before, between and after n values, as far as they do not depend on a value.
    copied: (n,) for each value, the number of an earlier value that it often begins like, or None.
    joints: (n,) for each value, a mapping. Some last tokens of a value merge with the fixed text behind it:
        the mapping's keys are such tokens, and its values are the tokens that then stand for both.
    """

    fixed: tuple[tuple[int, ...], ...]
    copied: tuple[int | None, ...]
    joints: tuple[Mapping[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SignedLines:
    """The lines of a text as patches have them: each behind a sign that keeps, removes or adds it.

    kept, removed, added: the token ids of all n lines, each behind that sign.
    ends: (3, n) the position behind each line in kept, in removed and in added.
    """

    kept: Sequence[int]
    removed: Sequence[int]
    added: Sequence[int]
    ends: tuple[Sequence[int], Sequence[int], Sequence[int]]


View: TypeAlias = Sequence[int] | Frame | SignedLines
"""A text that answers copy, a form that they fill in, or lines that they change."""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """The facts that a drafter gets when a sequence begins.

    seq: the sequence's number, unique among open sequences.
    prompt: (n,) token ids, n >= 1. It does not change while the sequence is open.
    prediction: token ids of the answer that the client expects; usually empty.
    tenant: the owner of the request. Drafters that share text between requests keep tenants apart by it.
    """

    seq: int
    prompt: Sequence[int]
    prediction: Sequence[int] = ()
    tenant: str = ""


# DraftQuery and Draft are created in every step. Frozen, they would take twice as long to create.
@dataclass(slots=True)
class DraftQuery:
    """A request for a draft: up to limit >= 1 tokens behind the committed tokens of the sequence seq."""

    seq: int
    limit: int


@dataclass(slots=True, unsafe_hash=True)  # hashable, so that it can be a default value
class Draft:
    """Proposed tokens, and how strong the evidence for them is.

    tokens: (k,) ids, 0 <= k <= limit of the query.
    source: name of the drafter.
    bucket: small number >= 0 for the strength of the evidence, such as a class of match lengths. The engine
        learns one acceptance rate per bucket.
    prior: expected acceptance rate per token, in [0, 1], used until there is something to learn from.
    by_token: bucket and prior of each token, if they differ; else empty.
    is_guess: whether this is a last resort: every draft that is no guess is better.
    """

    tokens: Sequence[int] = ()
    source: str = ""
    bucket: int = 0
    prior: float = 0.0
    by_token: Sequence[tuple[int, float]] = ()
    is_guess: bool = False


NO_DRAFT = Draft()


class Drafter(Protocol):
    """A source of drafts. One object serves all sequences; only the engine's thread calls it.

    Calls for one sequence: open, then propose, observe and note_verified any number of times in any order,
    then close. What a drafter keeps for a sequence is bounded by the sequence's tokens and freed by close.

    No call takes longer for a longer text. Work that grows with the text is returned by open and close as
    slices, which the caller does between other calls. It may stop at any slice.
    """

    name: str

    def open(self, start: SequenceStart) -> Slices | None:
        """Start drafting for a sequence. Returns the work of indexing its text, None if there is none.

        Before that work is done there may be fewer drafts. The work ends without error if the sequence is
        closed.
        """

    def propose(self, query: DraftQuery) -> Draft:
        """Propose the next tokens. Has no side effects on later drafts: asked twice, returns the same."""

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Take note of committed tokens: one or more, in order, drafted by this drafter, another or none."""

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Take note of the result of verifying this drafter's last draft.

        num_verified: tokens of the draft that were checked, >= 1. num_accepted: how many of them were
        accepted, counted from the first. Called after the tokens of that step were observed.
        """

    def close(self, seq: int) -> Slices | None:
        """Free the memory of a sequence that ended or failed. Called once per open, even a failed one.

        Returns work that later requests profit from, such as learning the text; None if there is none. The
        caller does this work for one sequence after the other, or drops it.
        """


def finish(slices: Slices | None) -> None:
    """Do all slices of some work at once."""
    deque(slices or (), maxlen=0)


@runtime_checkable
class IndexesViews(Protocol):
    """A drafter that also drafts from views: texts and forms that are not in the sequence itself."""

    def add_view(self, seq: int, view: View) -> Slices | None:
        """Return the work of indexing a text that an answer may copy, or take note of a form.

        The work ends without error if the sequence is closed. close() frees the view's memory.
        """


@runtime_checkable
class SharedTable(Protocol):
    """A drafter that keeps text from one request to the next, so that it can be inspected and managed."""

    def status(self) -> dict[str, Any]:
        """Return counts for people and metrics: plain JSON values by name."""

    def reset(self) -> Slices | None:
        """Forget everything. Returns the work of freeing its memory, None if there is none."""

    def save(self) -> str:
        """Write the contents to the file that the settings name. Return a sentence with the amount saved.

        Raises TableFileError if no file is set or it cannot be written.
        """

    def load(self) -> str:
        """Replace the contents with those of the file. Return a sentence with the amount loaded.

        Raises TableFileError if the file is missing, damaged, or from another vocabulary or version. The
        present contents are then kept.
        """


@runtime_checkable
class KeptHistory(Protocol):
    """A drafter that keeps finished requests on disk from one run to the next."""

    def restore(self) -> Slices | None:
        """Return the work of adding an earlier run's texts; None without such texts, or on a second call.

        Raises TableFileError if the file is damaged or not this drafter's.
        """

    def save(self) -> str:
        """Write the finished requests to the file, as SharedTable.save() does."""


class TableFileError(Exception):
    """A shared table cannot be saved or loaded; the message names the file and the reason."""
