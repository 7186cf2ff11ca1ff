"""What drafting did for one sequence, counted while its answer grows."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from engine.request import DraftingReport

if TYPE_CHECKING:
    # The command line composes drafters before it knows that it can listen; this would load transformers.
    from engine.speculative.translation.translator import TranslationCounts, Translator

PLAIN = "model"
"""The source of a token that the model chose without a draft, or instead of one, or behind one."""


@dataclass(slots=True)
class DraftCounts:
    """Counts of a sequence's forwards, drafts and tokens.

    by_source: drafter -> [drafted, accepted]. by_position: likewise for a draft's first token, its second...
    drafter_s: seconds that its drafters took while it was decoded; open_s: those before its first token.
    strategy, translation: how drafts of the draft model are translated and what became of them, where it has
        read the prompt.
    """

    num_forwards: int = 0
    by_source: dict[str, list[int]] = field(default_factory=dict)
    by_position: list[list[int]] = field(default_factory=list)
    drafter_s: float = 0.0
    open_s: float = 0.0
    strategy: str | None = None
    translation: "TranslationCounts | None" = None
    # Two lists of shared objects, not one of pairs: a run is to cost no more than a token of the answer.
    _run_sources: list[str] = field(default_factory=list)
    _run_lengths: list[int] = field(default_factory=list)

    def add_draft(self, source: str, num_verified: int, num_accepted: int) -> None:
        """A step verified num_offered tokens of a draft, and the first num_accepted were right."""
        counts = self.by_source.setdefault(source, [0, 0])
        counts[0] += num_verified
        counts[1] += num_accepted
        for at in range(num_verified):
            if at == len(self.by_position):
                self.by_position.append([0, 0])
            self.by_position[at][0] += 1
            self.by_position[at][1] += at < num_accepted

    def add_tokens(self, source: str, num_accepted: int, num_tokens: int) -> None:
        """num_tokens were committed, the first num_accepted of which source had drafted."""
        self._add_run(source, num_accepted)
        self._add_run(PLAIN, num_tokens - num_accepted)

    def track_translation(self, translator: "Translator", strategy: str) -> None:
        """The draft model's drafts go through this translator, which counts on where one before it ended."""
        self.strategy = strategy
        self.translation = translator.counts = self.translation or translator.counts

    def _add_run(self, source: str, length: int) -> None:
        if not length:
            return
        if self._run_sources and self._run_sources[-1] == source:
            self._run_lengths[-1] += length
        else:
            self._run_sources.append(source)
            self._run_lengths.append(length)

    def report(self, gate_score: float | None, gate_decision: str, gate_reason: str) -> DraftingReport:
        """Counts up to now, for the response, the log, the metrics and benchmarks."""
        offered_prediction, accepted_prediction = self.by_source.get("prediction", (0, 0))
        return DraftingReport(
            num_drafted=sum(drafted for drafted, _ in self.by_source.values()),
            num_accepted=sum(accepted for _, accepted in self.by_source.values()),
            num_forwards=self.num_forwards,
            by_source=tuple((name, drafted, right) for name, (drafted, right) in self.by_source.items()),
            by_position=tuple((drafted, right) for drafted, right in self.by_position),
            accepted_prediction=accepted_prediction,
            rejected_prediction=offered_prediction - accepted_prediction,
            origins=tuple(zip(self._run_sources, self._run_lengths, strict=True)),
            drafter_s=self.drafter_s,
            drafter_open_s=self.open_s,
            strategy=self.strategy,
            translation=asdict(self.translation) if self.translation else {},
            gate_score=gate_score,
            gate_decision=gate_decision,
            gate_reason=gate_reason,
        )
