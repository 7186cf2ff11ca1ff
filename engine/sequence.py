"""One request on its way through the engine."""

import logging
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import mlx.core as mx

from drafters.base import NO_DRAFT, Draft
from engine.kv_cache.rows import Caches
from engine.model.detokenizer import Detokenizer
from engine.model.tokenizer import Tokenizer
from engine.prefix_cache.disk import Loading
from engine.request import (
    Delta,
    DraftingReport,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    Sink,
    TokenLogprob,
    Usage,
)
from engine.sampling.grammar import Grammars, Matcher
from engine.sampling.logprobs import Likelihood
from engine.sampling.sampler import Penalties, needs_penalties
from engine.speculative.draft_model.reader import DraftReader, UnreadableTextError
from engine.speculative.proposers import SequenceDrafts

log = logging.getLogger("reprise.engine")


@dataclass(eq=False)
class Sequence:
    """A request, what has been committed for it, and where its keys and values stand.

    tokens: prompt and answer so far, all committed.
    caches, num_computed: its own caches while it prefills, and how many tokens they hold.
    edges: lengths at which what it has prefilled is to be kept for others.
    awaited: a sequence whose prefill it waits for, and up to which of the tokens that they share.
    compared: those among whom one to wait for was looked for.
    loading, was_looked_up: what is being read from files for it, and whether it was seen if there is any.
    draft_reader: what the draft model has read while it prefills, if there is one and it may draft here.
    num_dispatched: answer tokens sampled so far, whether or not they have been read.
    drafts: its drafters, once it has joined the rows.
    matcher: where the answer stands in its grammar, if it has one.
    prompt_logprobs: likelihoods of the prompt's tokens that were computed, from its second one on.
    has_told_prompt: its prompt's log probabilities were sent.
    num_inquests: how often it was among those who may have broken a step.
    num_passed: how many later ones began before it, because it would not have fitted into memory.
    """

    request: GenerationRequest
    sink: Sink
    text: Detokenizer
    tokenizer: Tokenizer
    submitted_at: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    caches: Caches = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    edges: set[int] = field(default_factory=set)
    awaited: "tuple[Sequence, int] | None" = None
    compared: "SequenceOf[Sequence]" = ()
    loading: Loading | None = None
    was_looked_up: bool = False
    draft_reader: DraftReader | None = None
    num_dispatched: int = 0
    penalties: Penalties | None = None
    drafts: SequenceDrafts | None = None
    matcher: Matcher | None = None
    prompt_logprobs: list[Likelihood] = field(default_factory=list)
    has_told_prompt: bool = False
    num_bisections: int = 0
    num_passed: int = 0
    ended: bool = False
    admitted_at: float = 0.0
    joined_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0

    @classmethod
    def of(
        cls, request: GenerationRequest, sink: Sink, tokenizer: Tokenizer, grammars: Grammars
    ) -> "Sequence":
        """A sequence that has only its prompt. Raises GrammarError."""
        text = Detokenizer(tokenizer, request.stop)
        matcher = grammars.matcher(request.grammar) if request.grammar else None
        return cls(request, sink, text, tokenizer, tokens=list(request.prompt), matcher=matcher)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end the answer."""
        return self.tokenizer.eos_ids

    @property
    def num_answered(self) -> int:
        """Committed tokens of the answer."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_to_prefill(self) -> int:
        """Tokens to compute before it can join the rows; its last token is fed by its first step."""
        num_left = len(self.tokens) - 1 - self.num_computed
        return (
            max(num_left, self.draft_reader.count_left(len(self.tokens))) if self.draft_reader else num_left
        )

    @property
    def next_position(self) -> int:
        """Absolute position of the token that its next step draws."""
        return len(self.request.prompt) + self.num_dispatched

    def admit(self, caches: Caches, num_computed: int) -> None:
        """Start with these caches, which hold that many of its tokens."""
        self.caches, self.num_computed = caches, num_computed
        self.awaited, self.compared = None, ()
        if not self.admitted_at:
            self.admitted_at = time.perf_counter()
            self.num_cached = self.num_computed

    def restart(self) -> None:
        """Forget all caches. What was committed stays, and the same tokens will follow it."""
        self.caches, self.num_computed, self.num_dispatched = [], 0, self.num_answered
        self.draft_reader = None
        self.prompt_logprobs.clear()

    def give_up_drafts(self, fault: Exception) -> None:
        """Drafting for it came to a fault: go on plainly."""
        log.warning("request %s goes on without drafts: %s", self.request.id, fault)
        if self.drafts:
            self.drafts.close()

    def give_up_draft_model(self, fault: Exception) -> None:
        """The draft model could not read its text, or say something of it: go on without."""
        level = logging.INFO if isinstance(fault, UnreadableTextError) else logging.WARNING
        log.log(level, "request %s goes on without the draft model: %s", self.request.id, fault)
        self.draft_reader = None
        if self.drafts:
            self.drafts.uses_model = False

    def make_penalties(self, vocab_size: int) -> None:
        """Count its tokens for the penalties, if it has any. Its last token is counted when it is fed."""
        if needs_penalties(self.request.sampling):
            answer = self.tokens[len(self.request.prompt) : -1]
            self.penalties = Penalties(self.request.sampling, self.request.prompt, answer, vocab_size)

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
        """Take one step's sampled tokens up to the end of the answer: detokenise, tell the drafters, emit.

        likelihoods: of each token, None where nobody asked.
        draft, num_offered: what the step verified, and how many tokens of it.
        """
        if not self.num_answered:
            self.first_token_at = time.perf_counter()
        num_before, text = len(self.tokens), ""
        reason: FinishReason | None = None
        logprobs: list[TokenLogprob] = []
        for token, likelihood in zip(tokens, likelihoods, strict=True):
            self.tokens.append(token)
            if token not in self.eos_ids:
                text += self.text.add(token)
                # What completes a stop string is not said.
                if likelihood is not None and not self.text.stopped:
                    logprobs.append(self._logprob(token, likelihood))
            reason = self._reason(token)
            if reason:
                break
        if self.drafts:
            self.drafts.observe(self.tokens[num_before:], draft, num_verified)
        if self.matcher:
            self.matcher.commit(self.tokens[num_before:])
        if text or logprobs:
            self.sink(Delta(text, tuple(logprobs)))
        if reason:
            self._finish(reason)

    def emit_prompt_logprobs(self) -> None:
        """Tell how likely the prompt's tokens were, once all are known; nothing if nobody asked."""
        if not self.request.prompt_logprobs or self.has_told_prompt:
            return
        self.has_told_prompt = True
        first, *others = self.request.prompt
        entries = [TokenLogprob(first, self.tokenizer.piece(first), None)]
        entries += [self._logprob(t, found) for t, found in zip(others, self.prompt_logprobs, strict=True)]
        self.sink(Delta("", tuple(entries)))

    def _logprob(self, token: int, likelihood: Likelihood) -> TokenLogprob:
        own, likeliest = likelihood
        piece = self.tokenizer.piece
        return TokenLogprob(token, piece(token), own, tuple((t, piece(t), value) for t, value in likeliest))

    def _reason(self, token: int) -> FinishReason | None:
        """Why the answer ends with this token, if it does."""
        if token in self.eos_ids or self.text.stopped:
            return "stop"
        return "length" if self.num_answered >= self.request.max_tokens else None

    def fail(self, failed: Failed) -> None:
        """End it badly, unless it has ended."""
        try:
            usage = self.usage()
        # Its end has to be told, whatever is wrong with it.
        except Exception:
            log.error("request %s cannot be counted", self.request.id, exc_info=True)
            usage = Usage(len(self.request.prompt), self.num_cached, self.num_answered)
        self._end(Failed(failed.kind, failed.message, usage))

    def usage(self) -> Usage:
        """Counts and times up to now."""
        now = time.perf_counter()
        return Usage(
            num_prompt_tokens=len(self.request.prompt),
            num_cached_tokens=self.num_cached,
            num_completion_tokens=self.num_answered,
            queue_s=(self.admitted_at or now) - self.submitted_at,
            prefill_s=(self.joined_at or now) - self.submitted_at,
            first_token_s=(self.first_token_at or now) - self.submitted_at,
            total_s=now - self.submitted_at,
            drafting=self.drafts.report() if self.drafts else DraftingReport(),
        )

    def _finish(self, reason: FinishReason) -> None:
        if not self.text.stopped and (rest := self.text.finish()):
            self.sink(Delta(rest))
        self._end(
            Finished(reason, self.usage(), tuple(self.tokens[len(self.request.prompt) :]), self.text.stop)
        )

    def _end(self, event: Event) -> None:
        if not self.ended:
            self.ended = True
            if self.drafts:
                self.drafts.close()
            self.sink(event)
