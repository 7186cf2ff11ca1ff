"""Counts of one sequence's drafts and their results, updated while its answer grows."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from reprise.engine.interface.events import DraftingReport
from reprise.engine.speculative.costs.cost_table import StepPrice

if TYPE_CHECKING:
    # Not at run time: it loads transformers, and the command line imports this before it binds its port.
    from reprise.engine.speculative.translation import TranslationCounts, Translator

UNMATCHED, UNLIKELY, DEAR, SPENT = "unmatched", "unlikely", "dear", "spent"
"""Why a step had no draft: no drafter had one, none was likely to be accepted, a step that verifies one costs
too much, or earlier drafts used up the time that they may cost."""

UNREAD, INEXACT = "unread", "inexact"
"""Rarer reasons: the draft model or head has not read the prompt yet; exact mode allows no such step."""

WORDS = {
    UNMATCHED: "nothing matched",
    UNLIKELY: "drafts were unlikely to be right",
    DEAR: "drafting takes longer than it saves here",
    SPENT: "drafts used up the time that they may cost",
    UNREAD: "the draft model or head had not read the prompt yet",
    INEXACT: "steps that verify such drafts are not exact here (--exact)",
}
"""The reasons for people, where nothing more is known."""

LEFT_OUT = "the draft model does not pay now, and few requests try it"
"""Why nothing was drafted if only the draft model or a head may draft."""

TOO_LONG = "the draft model or head would take longer to read the prompt than this answer can save"
"""Why nothing was drafted after draft prefill had begun."""

PLAIN = "model"
"""The source of tokens that no drafter drafted: those of plain steps, and bonus tokens."""


@dataclass(slots=True)
class DraftCounts:
    """Counts of a sequence's forwards, drafts and tokens.

    num_fed: tokens fed in the forwards.
    by_source: drafter -> [drafted, accepted]. by_position: the same for each position in drafts.
    drafter_s: seconds that the drafters took during decoding; open_s: those before the first token.
    undrafted: reason -> number of plans that chose a plain step. price: the estimated cost of the widest step
        rejected for its cost; the last of several.
    is_model_left_out: whether this prompt gets no draft prefill because the draft model or head does not pay
        now.
    is_model_dropped: whether draft prefill was stopped because the answer is too short to pay for it.
    token_steps: the estimated cost of a draft model's token when it did not pay, in plain steps.
    strategy, translation: how the draft model's drafts are translated, and the counts, once a draft prefill
        has begun.
    """

    num_forwards: int = 0
    num_fed: int = 0
    by_source: dict[str, list[int]] = field(default_factory=dict)
    by_position: list[list[int]] = field(default_factory=list)
    drafter_s: float = 0.0
    open_s: float = 0.0
    undrafted: dict[str, int] = field(default_factory=dict)
    price: StepPrice | None = None
    is_model_left_out: bool = False
    is_model_dropped: bool = False
    token_steps: float | None = None
    strategy: str | None = None
    translation: "TranslationCounts | None" = None
    # Two lists of shared objects, not one of pairs, so that a run takes no more memory than a token.
    _run_sources: list[str] = field(default_factory=list)
    _run_lengths: list[int] = field(default_factory=list)

    def add_draft(self, source: str, num_verified: int, num_accepted: int) -> None:
        """Count a draft of which num_verified tokens were verified and the first num_accepted accepted."""
        counts = self.by_source.setdefault(source, [0, 0])
        counts[0] += num_verified
        counts[1] += num_accepted
        for at in range(num_verified):
            if at == len(self.by_position):
                self.by_position.append([0, 0])
            self.by_position[at][0] += 1
            self.by_position[at][1] += at < num_accepted

    def add_tokens(self, source: str, num_accepted: int, num_tokens: int) -> None:
        """Count num_tokens committed tokens, the first num_accepted of them drafted by source."""
        if num_accepted:
            self._add_run(source, num_accepted)
        if num_tokens > num_accepted:
            self._add_run(PLAIN, num_tokens - num_accepted)

    def add_undrafted(self, reason: str, price: StepPrice | None = None) -> None:
        """Count a plan that chose a plain step. price: the cost of the rejected verification step."""
        self.undrafted[reason] = self.undrafted.get(reason, 0) + 1
        # The last drafts of an answer are short, and so say less.
        if price and (self.price is None or price.width >= self.price.width):
            self.price = price

    def why_undrafted(self) -> str:
        """Explain why most steps had no draft; empty if most had one, or if no drafter may draft."""
        if not self.undrafted or sum(self.undrafted.values()) * 2 < self.num_forwards:
            if self.by_source or self.num_forwards < 2:
                return ""
            if self.is_model_dropped:
                return TOO_LONG
            return self._with_price(LEFT_OUT) if self.is_model_left_out else ""
        reason = max(self.undrafted, key=self.undrafted.__getitem__)
        if reason == DEAR and self.price:
            return self.price.describe()
        drafted, accepted = (sum(each) for each in zip((0, 0), *self.by_source.values(), strict=True))
        if reason == UNLIKELY and 2 * accepted < drafted:
            return f"drafts are seldom accepted ({accepted} of {drafted} tokens)"
        if reason == SPENT and drafted:
            return f"{WORDS[SPENT]} ({accepted} of {drafted} tokens accepted)"
        return self._with_price(WORDS[reason]) if reason == DEAR else WORDS[reason]

    def _with_price(self, words: str) -> str:
        if self.token_steps is None:
            return words
        return f"{words} (a token of the draft model costs {self.token_steps:.2f} plain steps)"

    def track_translation(self, translator: "Translator", strategy: str) -> None:
        """Let a sequence's new translator continue the counts of its previous translator."""
        self.strategy = strategy
        self.translation = translator.counts = self.translation or translator.counts

    def _add_run(self, source: str, length: int) -> None:
        if self._run_sources and self._run_sources[-1] == source:
            self._run_lengths[-1] += length
        else:
            self._run_sources.append(source)
            self._run_lengths.append(length)

    def report(
        self, gate_score: float | None, gate_decision: str, gate_reason: str, *, has_origins: bool = True
    ) -> DraftingReport:
        """Report the counts so far, for the response, the log, the metrics and benchmarks.

        has_origins: also report which drafter made each run of tokens. There may be as many runs as tokens.
        """
        num_predicted, accepted_prediction = self.by_source.get("prediction", (0, 0))
        return DraftingReport(
            num_drafted=sum(drafted for drafted, _ in self.by_source.values()),
            num_accepted=sum(accepted for _, accepted in self.by_source.values()),
            num_forwards=self.num_forwards,
            num_fed=self.num_fed,
            by_source=tuple(
                (name, drafted, accepted) for name, (drafted, accepted) in self.by_source.items()
            ),
            by_position=tuple((drafted, accepted) for drafted, accepted in self.by_position),
            accepted_prediction=accepted_prediction,
            rejected_prediction=num_predicted - accepted_prediction,
            origins=tuple(zip(self._run_sources, self._run_lengths, strict=True)) if has_origins else (),
            drafter_s=self.drafter_s,
            drafter_open_s=self.open_s,
            strategy=self.strategy,
            translation=asdict(self.translation) if self.translation else {},
            gate_score=gate_score,
            gate_decision=gate_decision,
            gate_reason=gate_reason,
            undrafted=tuple(self.undrafted.items()),
            why_undrafted=self.why_undrafted(),
        )
