"""What a drafter is. The engine knows drafters by this file alone.

A drafter guesses what a sequence will say next, from text it has seen. It never decides anything: the
model samples every drafted position itself, and only what it would have said anyway is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence begins.

    seq: its number, unique among open sequences.
    prompt: (n,) token ids, n >= 1.
    prediction: token ids of the answer that the client expects; often none.
    tenant: whose request it is; drafters that share memory across requests keep tenants apart by it.
    """

    seq: int
    prompt: Sequence[int]
    prediction: Sequence[int] = ()
    tenant: str = ""


# Ask and Draft are not frozen: they are made in every step, and that would take twice as long.
@dataclass(slots=True)
class DraftQuery:
    """What may follow the tokens that seq has committed so far? At most limit >= 1 tokens are wanted."""

    seq: int
    limit: int


@dataclass(slots=True, unsafe_hash=True)  # hashed, so that it may be a default value
class Draft:
    """Proposed tokens, and what speaks for them.

    tokens: (k,) ids, 0 <= k <= limit of the ask.
    source: name of the drafter.
    bucket: small number >= 0 that stands for the strength of the evidence (length of the match, support).
        The gate learns from the drafts of one bucket how good the next will be.
    prior: chance in [0, 1] that a token of such a draft is right, before anything was learned.
    """

    tokens: Sequence[int] = ()
    source: str = ""
    bucket: int = 0
    prior: float = 0.0


NO_DRAFT = Draft()


class Drafter(Protocol):
    """Where drafts come from. One object serves all sequences; only the engine's thread calls it.

    For each sequence: open, then any number of propose, observe and settle in any order, then close.
    Memory of a sequence is bounded by its tokens and gone after close.
    """

    name: str

    def open(self, opening: SequenceStart) -> None:
        """A sequence begins."""

    def propose(self, query: DraftQuery) -> Draft:
        """Guess what follows. Changes no later answer: asking twice gives the same draft."""

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """These tokens were committed, whoever drafted them: one or more, in order."""

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """The last draft of this drafter was verified: offered >= 1 tokens, the first accepted were right.

        Called after the tokens of that step were observed.
        """

    def close(self, seq: int) -> None:
        """The sequence ended, well or badly. Called once for every open."""


@runtime_checkable
class SharedTable(Protocol):
    """A drafter whose memory outlives sequences, so that people can look at it and manage it."""

    def status(self) -> dict[str, Any]:
        """Counts for people and metrics: plain JSON values by name."""

    def reset(self) -> None:
        """Forget everything."""

    def save(self) -> str:
        """Write it to the file that the settings name; returns a sentence that says what was written.

        Raises TableFileError if there is no such setting or the file cannot be written.
        """

    def load(self) -> str:
        """Read it back, in place of what is known now; returns a sentence that says what was read.

        Raises TableFileError for a file that is missing, damaged, or from another vocabulary or version;
        what is known now then stays.
        """


class TableFileError(Exception):
    """A drafter's memory cannot be saved or loaded; the message says which file and why."""
