"""A request on its way through the engine."""

import logging
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from reprise.drafters.base import NO_DRAFT, Draft
from reprise.engine.interface.errors import GrammarCostError
from reprise.engine.interface.events import (
    Delta,
    DraftingReport,
    Event,
    Failed,
    Finished,
    FinishReason,
    PromptProgress,
    Sink,
    TokenLogprob,
    Usage,
)
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.disk import Loading
from reprise.engine.kv_cache.prefix_cache.text_key import Pictures, TextKey
from reprise.engine.sampling.grammar import Grammars, Matcher
from reprise.engine.sampling.logits import Likelihood, Penalties
from reprise.engine.sampling.matchers import make_matcher
from reprise.engine.sampling.sampler import Ends, RowSampling
from reprise.engine.speculative.acceptance import count_accepted
from reprise.engine.speculative.costs.cost_table import GREEDY, MASKED, sampling_class
from reprise.engine.speculative.draft_model.draft_prefill import UndraftableTextError
from reprise.engine.speculative.draft_stats import PLAIN
from reprise.engine.speculative.heads.head import States
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.speculative.window import Window
from reprise.engine.text.detokenizer import Detokenizer
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.vision.image_features import Looking
from reprise.engine.vision.keys import prompt_keys

if TYPE_CHECKING:
    from reprise.engine.speculative.heads.head_drafter import HeadPrefill

TIMES = 8
"""How often a text must be repeated to count as a loop."""
LEAST_TOKENS = 64
"""The fewest tokens of a loop, whatever a request says: less is an ordinary line."""


def ends_in_loop(tokens: SequenceOf[int], num_answered: int, loop_tokens: int) -> bool:
    """Return whether an answer ends in one text repeated at least TIMES times, over at least loop_tokens.

    tokens: (n,) ids that end with the answer. num_answered: how many of them the answer has.
    loop_tokens: 0 for never; values below LEAST_TOKENS count as LEAST_TOKENS.

    A window of loop_tokens finds repeated texts of up to an eighth of its length; windows of 2, 4, ... times
    that length find longer texts. Each window is checked when the answer's length is a multiple of an eighth
    of the window. So the result depends on the tokens alone, not on the steps that produced them.
    """
    if not loop_tokens:
        return False
    window = max(loop_tokens, LEAST_TOKENS)
    while window <= num_answered:
        longest = window // TIMES
        if num_answered % longest == 0 and _repeats(tokens[-window:], longest):
            return True
        window *= 2
    return False


def _repeats(tail: SequenceOf[int], longest: int) -> bool:
    """Return whether the whole tail is one text of at most longest tokens, repeated."""
    # A text of that length would hold all ids of the tail. Nearly every other tail has more.
    return len(set(tail)) == len(set(tail[-longest:])) and _period(tail) <= longest


def _period(tokens: SequenceOf[int]) -> int:
    """Return the least p with tokens[i] == tokens[i + p] everywhere. Source: Knuth, Morris and Pratt 1977."""
    borders, length = [0] * len(tokens), 0
    for at in range(1, len(tokens)):
        while length and tokens[at] != tokens[length]:
            length = borders[length - 1]
        length += tokens[at] == tokens[length]
        borders[at] = length
    return len(tokens) - borders[-1]


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

    num_cached: prompt tokens found when the sequence was first admitted. num_read_ahead: those of them that
        were read ahead.
    awaited: a prefilling sequence whose prefix it waits for, and the number of leading tokens they share.
    compared: the sequences that were prefilling at the last search for one to wait for.
    num_shared: (compared sequence, its number of tokens then) -> leading tokens that it shares.
    num_held: leading tokens that the prefix cache held at the last lookup, and the cache's evictions by then.
    loading: the prefix files being read. is_disk_searched: whether no more files are looked for.
    awaits_disk: the sequence whose files are read first. num_on_disk: leading tokens in files that are worth
        reading, for which memory had no room.
    unsaved: lengths at which state was kept in memory only, to be saved when its answer has ended.
    """

    num_cached: int = 0
    num_read_ahead: int = 0
    awaited: "tuple[Sequence, int] | None" = None
    compared: "SequenceOf[Sequence]" = ()
    num_shared: "dict[tuple[Sequence, int], int]" = field(default_factory=dict)
    num_held: tuple[int, int] = (0, 0)
    loading: Loading | None = None
    is_disk_searched: bool = False
    awaits_disk: "Sequence | None" = None
    num_on_disk: int = 0
    unsaved: list[int] = field(default_factory=list)


@dataclass
class Prefill:
    """A sequence's keys, values and states before it joins the rows.

    caches, num_computed: its own caches, and how many of its tokens they hold.
    states: the target's states of the tokens that were not found in the prefix cache, if a head reads them.
    keeps_states: whether one reads a prompt that is read ahead. of_head: its part of that, once it began.
    num_found: how many tokens were in the prefix cache, with state if the model has any.
    keep_at: lengths at which to store the caches in the prefix cache.
    rungs: further such lengths, for later prompts that diverge before this one's end. The value is how likely
        a prompt diverges there, relative to the other rungs.
    opening: the length at which the answer begins; 0 if no state is stored there.
    looking: the images of the prompt; None if it has none.
    max_chunk_tokens: how many tokens the next step may feed. widest_chunk: the most that a step has fed.
    """

    caches: Caches = field(default_factory=list)
    num_computed: int = 0
    states: States = field(default_factory=States)
    keeps_states: bool = False
    of_head: "HeadPrefill | None" = None
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


log = logging.getLogger("reprise.engine")

LOG_PROMPT_EVERY_S = 10.0
"""Seconds between log lines about a prompt that is being prefilled."""


@dataclass(eq=False)
class Sequence:
    """A request, and everything that was committed for it.

    text: converts its tokens into text that can be sent.
    tokens: prompt and answer so far; all of them are committed. keys: the same, but an image's placeholders
        have ids of that image. Drafters read these. Without images it is tokens itself.
    prefix: the search for a computed prefix of its prompt. prefill: what is computed of the prompt until the
        sequence joins the rows.
    row_sampling: how its tokens are sampled, while it decodes.
    drafts: its drafters, once it was admitted. matcher: the state of the answer's grammar, if any.
    window: the tokens that windowed decoding has filled in after its tokens; None for plain decoding.
    unmasked_sampling: the class of its sampling work without a grammar; see sampling_class().
    num_prompt_sent: leading tokens of its prompt whose log probabilities were sent.
    num_characters: characters of its text that can be sent. waiting: where the next tokens' text begins, and
        their log probabilities, which cannot be sent as their text may be of a stop string.
    num_bisections: how many bisections suspected it.
    num_overtaken: how many later sequences were admitted first because this one did not fit into memory.
    is_loop: whether it ended because it only repeated itself.
    """

    request: GenerationRequest
    sink: Sink
    text: Detokenizer
    tokenizer: Tokenizer
    tokens: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    prefix: PrefixSearch = field(default_factory=PrefixSearch)
    prefill: Prefill = field(default_factory=Prefill)
    row_sampling: RowSampling | None = None
    drafts: SequenceDrafts | None = None
    matcher: Matcher | None = None
    window: Window | None = None
    unmasked_sampling: int = GREEDY
    num_prompt_sent: int = 0
    num_characters: int = 0
    waiting: deque[tuple[int, TokenLogprob]] = field(default_factory=deque)
    num_bisections: int = 0
    num_overtaken: int = 0
    is_loop: bool = False
    ended: bool = False
    # The keys as an array, as far as they were needed: they only grow.
    _ids: np.ndarray = field(default_factory=partial(np.zeros, 0, np.int32))

    @classmethod
    def of(
        cls, request: GenerationRequest, sink: Sink, tokenizer: Tokenizer, grammars: Grammars
    ) -> "Sequence":
        """Make the sequence of a new request; its tokens are the prompt's. Raises GrammarError."""
        text = Detokenizer(tokenizer, request.stop)
        matcher = None
        # In a window, tokens after a trigger may be filled in before it.
        if request.grammar and not (request.grammar.trigger is not None and request.window_settings):
            matcher = make_matcher(grammars, request.grammar, tokenizer, request.prompt)
        tokens = keys = list(request.prompt)
        if request.images:
            keys = prompt_keys(tokens, request.images, tokenizer.vocab_size)
        return cls(
            request,
            sink,
            text,
            tokenizer,
            tokens=tokens,
            keys=keys,
            matcher=matcher,
            window=Window(request.window_settings) if request.window_settings else None,
            unmasked_sampling=sampling_class(request),
        )

    @property
    def sampling(self) -> int:
        """The class of the next token's sampling work. A grammar of calls masks only within them."""
        return MASKED if self.matcher and not self.matcher.may_run_ahead else self.unmasked_sampling

    @cached_property
    def pictures(self) -> Pictures:
        """The digests of its images, which tell texts with equal keys apart."""
        return tuple((image.start, image.key) for image in self.request.images)

    def text_key(self, length: int | None = None) -> TextKey:
        """Return the prefix cache's key of its first `length` tokens; None for all."""
        if len(self._ids) < (len(self.keys) if length is None else length):
            self._ids = np.append(self._ids, np.asarray(self.keys[len(self._ids) : length], np.int32))
        return TextKey(self._ids, self.pictures)[:length]

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end the answer."""
        return self.tokenizer.eos_ids.union(self.request.stop_tokens)

    @property
    def num_answered(self) -> int:
        """Committed tokens of the answer."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_to_prefill(self) -> int:
        """The number of tokens to compute before the sequence can join the rows: all but the last."""
        return len(self.tokens) - 1 - self.prefill.num_computed

    def admit(self, caches: Caches, num_computed: int) -> None:
        """Begin to prefill. caches: the sequence's own; they hold its first num_computed tokens."""
        self.prefill.caches, self.prefill.num_computed = caches, num_computed
        self.prefix.awaited, self.prefix.compared = None, ()
        self.prefix.num_shared = {}
        # If it restarts, it goes on at once: others may wait for it.
        self.prefix.is_disk_searched = True
        if not self.timing.admitted_at:
            self.timing.admitted_at = time.perf_counter()
            self.prefix.num_cached = num_computed

    def restart(self) -> None:
        """Drop its arrays before a new prefill. Committed tokens stay, and the same tokens follow them."""
        self.prefill, self.row_sampling = Prefill(), None

    def suspend(self) -> None:
        """Drop all state of the present worker, as the model is unloaded; a later worker goes on."""
        self.restart()
        self.prefix = PrefixSearch(self.prefix.num_cached, self.prefix.num_read_ahead)
        if self.drafts:
            self.drafts.close()

    def give_up_drafts(self, fault: Exception) -> None:
        """Stop drafting after an error; the answer is decoded plainly from here on."""
        log.warning("request %s continues without drafts: %s", self.request.id, fault)
        if self.drafts:
            self.drafts.close()

    def give_up_draft_model(self, fault: Exception) -> None:
        """Stop using the draft model, which could not take the text or translate a draft."""
        level = logging.INFO if isinstance(fault, UndraftableTextError) else logging.WARNING
        log.log(level, "request %s continues without the draft model: %s", self.request.id, fault)
        if self.drafts:
            self.drafts.uses_model = False

    @property
    def penalties(self) -> Penalties | None:
        """The token counts for the request's penalties; None if it has none, or while it does not decode."""
        return self.row_sampling.penalties if self.row_sampling else None

    def make_row_sampling(self, vocab_size: int) -> RowSampling:
        """Return the row's sampling. The first call makes it, before the row's first step.

        Penalties do not count the sequence's last token until the next step feeds it.
        """
        if self.row_sampling is None:
            answer = self.tokens[len(self.request.prompt) : -1]
            request, ends = self.request, Ends(self.tokenizer.eos_ids, self.request.stop_tokens)
            self.row_sampling = RowSampling(request.sampling, vocab_size, request.prompt, answer, ends)
        return self.row_sampling

    def count_for_penalties(self) -> None:
        """Bring the penalties' counts up to what has been committed."""
        if self.penalties:
            uncounted = self.tokens[len(self.request.prompt) + self.penalties.num_counted :]
            if uncounted:
                self.penalties.observe(mx.array(uncounted, mx.int32))

    def commit(
        self,
        tokens: list[int],
        likelihoods: SequenceOf[Likelihood | None],
        draft: Draft = NO_DRAFT,
        num_verified: int = 0,
    ) -> None:
        """Commit one step's tokens up to the end of the answer: detokenize, inform the drafters, emit.

        tokens: at least one, unless the sequence is decoded in windows.
        likelihoods: of each token, None if the request does not want log probabilities.
        draft, num_verified: the draft that the step verified, if any, and how many of its tokens.
        """
        if tokens and not self.num_answered:
            self.timing.first_token_at = time.perf_counter()
            self.report_progress(len(self.request.prompt))
        num_before, texts, min_tokens = len(self.tokens), list[str](), self.request.sampling.min_tokens
        reason: FinishReason | None = None
        logprobs: list[TokenLogprob] = []
        for token, likelihood in zip(tokens, likelihoods, strict=True):
            self.tokens.append(token)
            if token not in self.eos_ids:
                may_stop = not min_tokens or self.num_answered > min_tokens
                begin = self.num_characters + self.text.num_held
                texts.append(self.text.add(token, can_stop=may_stop))
                self.num_characters += len(texts[-1])
                if likelihood is not None:
                    self.waiting.append((begin, self._logprob(token, likelihood)))
                    logprobs += self._take_logprobs()
            reason = self._reason(token)
            if reason:
                break
        if self.keys is not self.tokens:
            self.keys += self.tokens[num_before:]
        if self.drafts:
            self.drafts.observe(self.tokens[num_before:], draft, num_verified)
        if self.matcher is not None:
            self.matcher.commit(self.tokens[num_before:])
        if (text := "".join(texts)) or logprobs:
            usage = self.usage(has_origins=False) if self.request.reports_usage else None
            origins: tuple[tuple[str, str], ...] = ()
            if self.request.reports_origins:
                num_accepted = count_accepted(draft.tokens[:num_verified], tokens)
                origins = _runs(texts, draft.source, num_accepted)
            self.sink(Delta(text, tuple(logprobs), usage=usage, origins=origins))
        if reason:
            self._finish(reason)

    def report_progress(self, num_processed: int) -> None:
        """Report how many prompt tokens are processed, if the request wants progress; log it at times."""
        if self.num_answered or self.ended:
            return
        taken_s = time.perf_counter() - self.timing.admitted_at
        if taken_s - self.timing.prompt_logged_s >= LOG_PROMPT_EVERY_S:
            self.timing.prompt_logged_s = taken_s
            num_tokens = len(self.request.prompt)
            log.info(
                "%s: reading the prompt, %d of %d tokens (%d %%) after %.0f s",
                self.request.id, num_processed, num_tokens, 100 * num_processed // num_tokens, taken_s,
            )  # fmt: skip
        if self.request.reports_progress:
            num_tokens, num_cached = len(self.request.prompt), self.prefix.num_cached
            self.sink(Delta("", progress=PromptProgress(num_tokens, num_cached, num_processed, taken_s)))

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether the request wants log probabilities of the prompt's tokens that have not been sent."""
        return self.request.prompt_logprobs and self.num_prompt_sent < len(self.request.prompt)

    def emit_prompt_logprobs(self, start: int, likelihoods: SequenceOf[Likelihood | None]) -> None:
        """Send the log probabilities of a run of the prompt's tokens, but for those sent before a restart.

        start: index in the prompt of the run's first token; those of all tokens before it were sent.
        likelihoods: one per token of the run; None for the prompt's first, which has no log probability.
        """
        prompt, entries = self.request.prompt, []
        for likelihood in likelihoods[self.num_prompt_sent - start :]:
            entries.append(self._logprob(prompt[self.num_prompt_sent], likelihood))
            self.num_prompt_sent += 1
        if entries:
            self.sink(Delta("", tuple(entries), is_prompt=True))

    def _logprob(self, token: int, likelihood: Likelihood | None) -> TokenLogprob:
        logprob, likeliest = likelihood or (None, [])
        piece = self.tokenizer.piece
        top = tuple((t, piece(t), value) for t, value in likeliest)
        return TokenLogprob(token, piece(token), logprob, top)

    def _take_logprobs(self) -> list[TokenLogprob]:
        """Take the log probabilities of tokens whose text begins before any stop string."""
        taken, is_certain = [], not (self.text.stopped or self.text.may_begin_stop)
        while self.waiting and (is_certain or self.waiting[0][0] < self.num_characters):
            taken.append(self.waiting.popleft()[1])
        return taken

    def _reason(self, token: int) -> FinishReason | None:
        """Return why the answer ends with this token, None if it does not."""
        if token in self.eos_ids or self.text.stopped:
            return "stop"
        request, sampling, num_answered = self.request, self.request.sampling, self.num_answered
        if num_answered >= request.max_tokens:
            return "length"
        if not sampling.ignores_eos and num_answered >= sampling.min_tokens:
            self.is_loop = ends_in_loop(self.tokens, num_answered, request.loop_guard_tokens)
        return "stop" if self.is_loop else None

    def fail_with(self, fault: Exception) -> None:
        """Log an exception and end the sequence with it, unless it has ended."""
        if self.ended:
            return
        if isinstance(fault, GrammarCostError):
            log.warning("request %s ends: its grammar %s", self.request.id, fault)
            self.fail(Failed("grammar", str(fault)))
        else:
            log.error("request %s failed", self.request.id, exc_info=fault)
            self.fail(Failed("request", f"generation failed: {fault}"))

    def fail(self, failed: Failed) -> None:
        """Send the sequence's Failed event, unless it has ended."""
        try:
            usage = self.usage()
        # It must get its terminal event, whatever is wrong with its counts.
        except Exception:
            log.error("request %s cannot be counted", self.request.id, exc_info=True)
            usage = Usage(len(self.request.prompt), self.prefix.num_cached, self.num_answered)
        self._end(Failed(failed.kind, failed.message, usage))

    def usage(self, *, has_origins: bool = True) -> Usage:
        """Return the counts and times up to now. has_origins: see DraftCounts.report()."""
        now, timing = time.perf_counter(), self.timing
        return Usage(
            num_prompt_tokens=len(self.request.prompt),
            num_cached_tokens=self.prefix.num_cached,
            num_read_ahead_tokens=self.prefix.num_read_ahead,
            num_completion_tokens=self.num_answered,
            queue_s=(timing.admitted_at or now) - timing.submitted_at,
            prefill_s=(timing.joined_at or now) - timing.submitted_at,
            first_token_s=(timing.first_token_at or now) - timing.submitted_at,
            total_s=now - timing.submitted_at,
            window_settings=self.request.window_settings,
            is_loop=self.is_loop,
            drafting=self.drafts.report(has_origins=has_origins) if self.drafts else DraftingReport(),
        )

    def _finish(self, reason: FinishReason) -> None:
        if not self.text.stopped and (rest := self.text.finish()):
            self.num_characters += len(rest)
            origins = ((rest, PLAIN),) if self.request.reports_origins else ()
            self.sink(Delta(rest, tuple(self._take_logprobs()), origins=origins))
        if self.is_loop and self.matcher and not self.matcher.is_complete:
            # An unfinished grammar means that the answer was cut off.
            reason = "length"
        # The rest may complete a stop string.
        reason = "stop" if self.text.stopped else reason
        self._end(
            Finished(reason, self.usage(), tuple(self.tokens[len(self.request.prompt) :]), self.text.stop)
        )

    def _end(self, event: Event) -> None:
        if not self.ended:
            self.ended = True
            if self.drafts:
                self.drafts.close()
            self.sink(event)


def _runs(texts: SequenceOf[str], source: str, num_accepted: int) -> tuple[tuple[str, str], ...]:
    """Return the texts of tokens that were drafted and accepted, and of the others after them."""
    parts = ("".join(texts[:num_accepted]), source), ("".join(texts[num_accepted:]), PLAIN)
    return tuple((text, source) for text, source in parts if text)


class StepError(Exception):
    """A step failed, and the caches of all rows in the batch are lost with it.

    suspects: the sequences among which one may be at fault; empty if no sequence is.
    fault: the exception that made the step fail.
    """

    def __init__(self, suspects: Iterable[Sequence], fault: Exception) -> None:
        super().__init__(str(fault))
        self.suspects = list(suspects)
        self.fault = fault
