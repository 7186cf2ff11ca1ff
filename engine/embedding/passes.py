"""Choose texts of about the same length for a pass, such that no short request waits for long ones."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from reprise.engine.interface.embeddings import Embedded, EmbeddingInput, EmbeddingRequest, TokenIds
from reprise.engine.interface.events import EmbeddingSink, Failed

SHARE = 4
"""One of SHARE passes is begun by the oldest request, the others by the one that lacks the least."""

MAX_PADDING = 4
"""A text shares a pass with a longer one if it is padded by less than 1/MAX_PADDING of that one's length."""


@dataclass(eq=False)
class Job:
    """A request and its results.

    left: indices of the inputs that have no vector and are in no pass, the longest first.
    num_left: the sum of the tokens of these inputs.
    head: the tokens that all inputs begin with, computed once.
    vectors: the results so far, by the input's index.
    is_alone: whether the request shares no pass with others, as a shared pass failed.
    """

    request: EmbeddingRequest
    sink: EmbeddingSink
    left: list[int] = field(default_factory=list)
    num_left: int = 0
    head: TokenIds = ()
    vectors: dict[int, bytes] = field(default_factory=dict)
    is_alone: bool = False
    ended: bool = False

    @classmethod
    def of(cls, request: EmbeddingRequest, sink: EmbeddingSink) -> "Job":
        """Make the job of a request."""
        job = cls(request, sink)
        job.put_back(range(len(request.inputs)))
        return job

    def take(self, indices: Collection[int]) -> None:
        """Remove inputs, by index, from those that are left: a pass computes them now."""
        self.left = [index for index in self.left if index not in indices]
        self.num_left -= self._count(indices)

    def put_back(self, indices: Iterable[int]) -> None:
        """Add inputs, by index, to those that are left."""
        self.left += indices
        self.left.sort(key=self._rank)
        self.num_left = self._count(self.left)

    def first_up_to(self, num_tokens: int) -> int:
        """Return the first place in left whose input has at most num_tokens; so do all inputs after it."""
        return bisect_left(self.left, -num_tokens, key=self._rank)

    def _rank(self, index: int) -> int:
        return -len(self.request.inputs[index].tokens)

    def _count(self, indices: Iterable[int]) -> int:
        return -sum(map(self._rank, indices))

    def end(self, event: Embedded | Failed) -> None:
        """Send the request its terminal event, unless it has had one."""
        if not self.ended:
            self.ended = True
            self.sink(event)

    def finish(self) -> None:
        """End the request with the vectors of all its inputs."""
        self.end(Embedded(tuple(self.vectors[index] for index in range(len(self.request.inputs)))))


@dataclass(frozen=True)
class Member:
    """An input of a request, by its index, as a member of a pass."""

    job: Job
    index: int

    @property
    def input(self) -> EmbeddingInput:
        """The text or the pair that this member stands for."""
        return self.job.request.inputs[self.index]

    @property
    def num_tokens(self) -> int:
        """The number of the input's tokens."""
        return len(self.input.tokens)


def by_job(members: Iterable[Member]) -> dict[Job, set[int]]:
    """Group members by request: request -> indices of its inputs."""
    found: dict[Job, set[int]] = {}
    for member in members:
        found.setdefault(member.job, set()).add(member.index)
    return found


Fits = Callable[[int, int], bool]
"""Says whether a pass may have so many texts, padded to so many tokens after their head."""


def choose_members(jobs: Sequence[Job], num_passes: int, fits: Fits) -> list[Member]:
    """Choose the inputs of the next pass, the longest first; at least one, whether it fits or not.

    All of them begin with the head of the first one's request.
    jobs: in the order of their arrival, each with inputs left. num_passes: passes that were chosen before.
    fits: see Fits.
    """
    is_for_oldest = num_passes % SHARE == SHARE - 1
    first = jobs[0] if is_for_oldest else min(jobs, key=lambda job: job.num_left)
    members = [Member(first, first.left[0])]
    longest = members[0].num_tokens
    num_head = len(first.head)
    others = () if first.is_alone else (job for job in jobs if job is not first and _may_join(job, first))
    for member in _alike([first, *others], longest, num_head):
        if member != members[0]:
            if not fits(len(members) + 1, longest - num_head):
                break
            members.append(member)
    return members


def _may_join(job: Job, first: Job) -> bool:
    """Say whether a request's texts may share a pass with another's; none computes its head once more."""
    is_alike = job.head[: len(first.head)] == first.head and bool(job.head) == bool(first.head)
    return is_alike and not job.is_alone


def _alike(jobs: Iterable[Job], longest: int, num_head: int) -> Iterable[Member]:
    """Yield the texts that may share a pass with one of so many tokens, request by request.

    num_head: leading tokens that are computed before.
    """
    for job in jobs:
        for index in job.left[job.first_up_to(longest) :]:
            padding = longest - len(job.request.inputs[index].tokens)
            if padding * MAX_PADDING >= longest - num_head:
                break
            yield Member(job, index)
