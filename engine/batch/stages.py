"""What a sequence keeps of each stage: its times, the search for its prefix, and its prefill."""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.disk import Loading
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.speculative.heads.states import States
from reprise.engine.vision.sight import Looking

if TYPE_CHECKING:
    from reprise.engine.batch.sequence import Sequence


@dataclass
class Timing:
    """When a sequence reached each stage, by time.perf_counter() in seconds; 0 before it has.

    prompt_logged_s: seconds of prefill after which the log last reported its progress.
    """

    submitted_at: float = field(default_factory=time.perf_counter)
    admitted_at: float = 0.0
    joined_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    prompt_logged_s: float = 0.0


@dataclass
class PrefixSearch:
    """The search for an already computed prefix of a waiting sequence's prompt.

    num_cached: prompt tokens found when the sequence was first admitted.
    awaited: a prefilling sequence whose prefix it waits for, and the number of leading tokens they share.
    compared: the sequences that were prefilling when one to wait for was last looked for.
    num_shared: leading tokens shared with each compared sequence, by that sequence and its number of tokens.
    num_held: leading tokens that the prefix cache held at the last lookup, and the cache's evictions by then.
    key: the waiting sequence's text; None until it is needed.
    loading: the prefix files being read. is_disk_searched: whether files were looked for.
    unsaved: lengths at which state was kept in memory only, to be saved when its answer has ended.
    """

    num_cached: int = 0
    awaited: "tuple[Sequence, int] | None" = None
    compared: "SequenceOf[Sequence]" = ()
    num_shared: "dict[tuple[Sequence, int], int]" = field(default_factory=dict)
    num_held: tuple[int, int] = (0, 0)
    key: TextKey | None = None
    loading: Loading | None = None
    is_disk_searched: bool = False
    unsaved: list[int] = field(default_factory=list)


@dataclass
class Prefill:
    """A sequence's keys, values and states before it joins the rows.

    caches, num_computed: its own caches, and how many of its tokens they hold.
    key: all of its text, if state is to be kept at some lengths; else None.
    states: the target's states of the tokens that were not found in the prefix cache, if a head reads them.
    num_found: how many tokens were in the prefix cache, with state if the model has any.
    keep_at: lengths at which the caches are to be kept in the prefix cache.
    rungs: further lengths to keep, for later prompts that part from this one before its end -> how likely one
        parts there, relative to the other rungs.
    opening: the length at which the answer opens; 0 if state is not kept there.
    looking: the images of the prompt; None if it has none.
    max_chunk_tokens: how many tokens the next step may feed. widest_chunk: the most that a step has fed.
    """

    caches: Caches = field(default_factory=list)
    num_computed: int = 0
    key: TextKey | None = None
    states: States = field(default_factory=States)
    num_found: int = 0
    keep_at: set[int] = field(default_factory=set)
    rungs: dict[int, float] = field(default_factory=dict)
    opening: int = 0
    looking: Looking | None = None
    max_chunk_tokens: int = 0
    widest_chunk: int = 0

    @property
    def kept_lengths(self) -> set[int]:
        """All lengths at which the caches are to be kept: keep_at and rungs."""
        return {*self.keep_at, *self.rungs}
