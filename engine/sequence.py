"""One request on its way through the engine."""

import time
from dataclasses import dataclass, field

from engine.request import Delta, Event, Failed, Finished, FinishReason, GenerationRequest, Sink, Usage
from engine.rows import Caches
from engine.sampling import Penalties, needs_penalties
from engine.text import AnswerText
from engine.tokenizer import Tokenizer


@dataclass(eq=False)
class Sequence:
    """A request, what has been committed for it, and where its keys and values stand.

    tokens: prompt and answer so far, all committed.
    caches, num_computed: its own caches while it prefills, and how many tokens they hold.
    num_dispatched: answer tokens sampled so far, whether or not they have been read.
    alone: it was in a step that failed, so it runs by itself until it is done or found guilty.
    """

    request: GenerationRequest
    sink: Sink
    text: AnswerText
    eos_ids: frozenset[int]
    submitted_at: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    caches: Caches = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    num_dispatched: int = 0
    penalties: Penalties | None = None
    alone: bool = False
    ended: bool = False
    admitted_at: float = 0.0
    first_token_at: float = 0.0

    @classmethod
    def of(cls, request: GenerationRequest, sink: Sink, tokenizer: Tokenizer) -> "Sequence":
        """A sequence that has only its prompt."""
        text = AnswerText(tokenizer, request.stop)
        return cls(request, sink, text, tokenizer.eos_ids, tokens=list(request.prompt))

    @property
    def num_answered(self) -> int:
        """Committed tokens of the answer."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_to_prefill(self) -> int:
        """Tokens to compute before it can join the rows; its last token is fed by its first step."""
        return len(self.tokens) - 1 - self.num_computed

    @property
    def next_position(self) -> int:
        """Absolute position of the token that its next step draws."""
        return len(self.request.prompt) + self.num_dispatched

    def admit(self, caches: Caches, num_computed: int) -> None:
        """Start with these caches, which hold that many of its tokens."""
        self.caches, self.num_computed = caches, num_computed
        if not self.admitted_at:
            self.admitted_at = time.perf_counter()
            self.num_cached = self.num_computed

    def restart(self) -> None:
        """Forget all caches. What was committed stays, and the same tokens will follow it."""
        self.caches, self.num_computed, self.num_dispatched = [], 0, self.num_answered

    def make_penalties(self, vocab_size: int) -> None:
        """Count its tokens for the penalties, if it has any. Its last token is counted when it is fed."""
        if needs_penalties(self.request.sampling):
            answer = self.tokens[len(self.request.prompt) : -1]
            self.penalties = Penalties(self.request.sampling, self.request.prompt, answer, vocab_size)

    def commit(self, token: int) -> None:
        """Take one sampled token: detokenise, look for an end, emit."""
        if not self.num_answered:
            self.first_token_at = time.perf_counter()
        self.tokens.append(token)
        if token in self.eos_ids:
            self._finish("stop")
            return
        if text := self.text.add(token):
            self.sink(Delta(text))
        if self.text.stopped:
            self._finish("stop")
        elif self.num_answered >= self.request.max_tokens:
            self._finish("length")

    def fail(self, failed: Failed) -> None:
        """End it badly, unless it has ended."""
        self._end(Failed(failed.kind, failed.message, self.usage()))

    def usage(self) -> Usage:
        """Counts and times up to now."""
        now = time.perf_counter()
        return Usage(
            num_prompt_tokens=len(self.request.prompt),
            num_cached_tokens=self.num_cached,
            num_completion_tokens=self.num_answered,
            queue_s=(self.admitted_at or now) - self.submitted_at,
            first_token_s=(self.first_token_at or now) - self.submitted_at,
            total_s=now - self.submitted_at,
        )

    def _finish(self, reason: FinishReason) -> None:
        if not self.text.stopped and (rest := self.text.finish()):
            self.sink(Delta(rest))
        self._end(Finished(reason, self.usage(), tuple(self.tokens[len(self.request.prompt) :])))

    def _end(self, event: Event) -> None:
        if not self.ended:
            self.ended = True
            self.sink(event)
