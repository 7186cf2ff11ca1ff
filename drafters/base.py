"""The drafter protocol. This is the only file of the package that the engine depends on.

A drafter proposes the next tokens of a sequence, from text seen earlier. It decides nothing: the target model
samples every drafted position itself, and keeps only tokens that it would have generated anyway.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

SLICE_TOKENS = 512
"""Maximum number of tokens that one slice of work may index: about .06 ms where arrays do it."""

Slices: TypeAlias = Iterator[int]
"""Work in slices: each next() does one slice and returns the number of tokens that it took, at most
SLICE_TOKENS. A slice takes about .06 ms and at most .12, however long the text is."""


View: TypeAlias = Sequence[int]
"""Token ids of a text that answers copy."""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A drafter's input when a sequence begins.

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
    """A request for a draft: up to limit >= 1 tokens after the committed tokens of sequence seq."""

    seq: int
    limit: int


@dataclass(slots=True, unsafe_hash=True)  # hashable, so that it can be a default value
class Draft:
    """Proposed tokens, and how strong the evidence for them is.

    tokens: (k,) ids, 0 <= k <= limit of the query.
    source: name of the drafter.
    bucket: small number >= 0 for the strength of the evidence, such as a class of match lengths. The engine
        learns one acceptance rate per bucket.
    prior: expected acceptance rate per token, in [0, 1], until observations replace it.
    by_token: bucket and prior of each token, if they differ; else empty.
    support: for each token a small number >= 0 that stands for other evidence for or against it; may be
        empty. The engine learns by how much each number raises or lowers a token's chance.
    is_guess: whether this is a last resort, used only if no other drafter's draft pays.
    """

    tokens: Sequence[int] = ()
    source: str = ""
    bucket: int = 0
    prior: float = 0.0
    by_token: Sequence[tuple[int, float]] = ()
    is_guess: bool = False
    support: Sequence[int] = ()


NO_DRAFT = Draft()


class Drafter(Protocol):
    """A source of drafts. One object serves all sequences; only the engine's thread calls it.

    Calls for one sequence: open, then propose, observe and note_verified any number of times in any order,
    then close. A drafter's memory per sequence is bounded by its tokens and freed by close.

    No call takes longer for a longer text. open and close return work that grows with the text as slices,
    which the caller does between other calls. It may stop at any slice.
    """

    name: str

    def open(self, start: SequenceStart) -> Slices | None:
        """Start drafting for a sequence. Returns the work of indexing its text, None if there is none.

        Until that work is done there may be fewer drafts. It ends without error if the sequence is closed.
        """

    def propose(self, query: DraftQuery) -> Draft:
        """Propose the next tokens. Repeated calls return the same draft."""

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Observe committed tokens: one or more, in order, whoever drafted them."""

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Observe the result of verifying this drafter's last draft.

        num_verified: tokens of the draft that were checked, >= 1. num_accepted: how many of them were
        accepted, counted from the first. Called after the tokens of that step were observed.
        """

    def close(self, seq: int) -> Slices | None:
        """Free the memory of a sequence that ended or failed. Called once per open, even a failed one.

        Returns work for the benefit of later requests, such as learning the text; None if there is none. The
        caller does it for one sequence after the other, or drops it.
        """


def finish(slices: Slices | None) -> None:
    """Do all slices of some work at once."""
    deque(slices or (), maxlen=0)


@runtime_checkable
class IndexesViews(Protocol):
    """A drafter that also drafts from views: texts besides the sequence itself."""

    def add_view(self, seq: int, view: View) -> Slices:
        """Return the work of indexing a text that an answer may copy.

        The work ends without error if the sequence is closed. close() frees the view's memory.
        """


@runtime_checkable
class SharedTable(Protocol):
    """A drafter with text shared between requests, which can be inspected and managed."""

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
