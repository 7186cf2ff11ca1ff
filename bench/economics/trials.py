"""Run trials: each chat plainly and with drafts, alternating, so that both see the same machine state."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from bench.decode.answering import Answering, add_nested
from bench.economics.controlled import PLACE, ControlledDrafter, chance_for
from bench.experiment import Experiment, Row
from bench.workloads import Chat
from engine.request import DraftType

CONTROLLED = "controlled"
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The acceptance rates that are aimed at; the analysis uses the measured ones."""

MIN_TOKENS = 8
"""Shorter answers are left out: their times are dominated by measurement noise."""

DraftSetting = tuple[DraftType, int]
"""A draft type and the maximum draft length."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time, counts and energy of the measured turns of one chat.

    decode_s: from the end of prefill to the last token. widths: (drafted tokens, number of such steps).
    drafter_s: the part of decode_s spent in drafters.
    joules: of the whole requests, prefill included; None if not measured.
    """

    tokens: tuple[int, ...]
    decode_s: float
    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    drafter_s: float = 0.0
    joules: float | None = None

    @property
    def tps(self) -> float:
        """Decode speed in tokens per second."""
        return len(self.tokens) / self.decode_s


@dataclass(frozen=True, slots=True)
class Trial:
    """A chat decoded with drafts, compared with the plain runs of the same chat just before and after.

    chat: its number, over all workloads. draft_type: CONTROLLED, or one that a user could choose.
    num_draft_tokens: maximum draft length. is_gated: whether the engine was free to leave drafts out.
    plain_tps: over both plain runs together. plain_joules: mean of the plain runs.
    """

    chat: int
    workload: str
    draft_type: str
    num_draft_tokens: int
    is_gated: bool
    spent: Spent
    plain_tps: float
    is_equal: bool
    plain_joules: float | None = None

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were accepted; 0 if nothing was drafted."""
        return self.spent.num_accepted / self.spent.num_drafted if self.spent.num_drafted else 0.0

    @property
    def speedup(self) -> float:
        """The decode speed, relative to plain decoding of the same chat at the same time."""
        return self.spent.tps / self.plain_tps


@dataclass
class TrialRunner:
    """Runs trials on an engine. repeats: runs of each answer, of which the fastest counts.

    advance: called after each arm of a chat.
    """

    answering: Answering
    repeats: int
    advance: Callable[[], None]

    def warm_up(self, chat: Chat, lengths: Sequence[int]) -> None:
        """Decode once at each width, unmeasured: the first step of a new shape may have to build kernels."""
        for length in lengths:
            self.control(0, chat, length, levels=(1.0,))

    def compare(
        self, number: int, chat: Chat, groups: Sequence[Sequence[DraftSetting]], is_gated: bool
    ) -> list[Trial]:
        """Run a chat with every draft setting, with a plain run before and after each group of settings."""
        answer = self.answering.run
        arms = {"plain 0": lambda chat: answer([chat], "none")}
        for at, group in enumerate(groups, 1):
            for kind, length in group:
                arms[f"{kind} {length}"] = lambda chat, kind=kind, length=length: answer([chat], kind, length)  # type: ignore[misc]
            arms[f"plain {at}"] = arms["plain 0"]
        experiment = Experiment(arms, {str(number): chat}, self.repeats, has_warm_up=lambda _: False)
        spent = self._spent(experiment.run(), list(arms))
        return [
            _trial(number, chat.workload, (kind, length), is_gated, spent[f"{kind} {length}"], plain)
            for at, group in enumerate(groups)
            for kind, length in group
            if len((plain := [spent[f"plain {at}"], spent[f"plain {at + 1}"]])[1].tokens) >= MIN_TOKENS
        ]

    def control(
        self, number: int, chat: Chat, num_draft_tokens: int, levels: Sequence[float] = LEVELS
    ) -> list[Trial]:
        """Run a chat's first measured turn at every level of acceptance, between two plain runs."""
        turn = next((turn for turn in chat.turns if turn.is_measured), None)
        if turn is None:
            return []
        first_turn = Chat(chat.workload, (turn,), chat.prompt_tokens)
        drafters = self.answering.local.drafters
        oracle = ControlledDrafter(self.answering.local.engine.info.vocab_size, number)
        rows = self.answering.run([first_turn], "none")
        answer = tuple(rows[0]["tokens"][0]) if rows else ()
        if len(answer) < MIN_TOKENS:
            return []

        def controlled(level: float, chat: Chat) -> list[Row]:
            oracle.chance = chance_for(level, num_draft_tokens)
            # Type draft-model uses no lookups, so nothing but the prediction is drafted.
            return self.answering.run([chat], "draft-model", num_draft_tokens, prediction=answer)

        def plainly(chat: Chat) -> list[Row]:
            return self.answering.run([chat], "none")

        arms = (
            {"before": plainly}
            | {str(level): partial(controlled, level) for level in levels}
            | {"after": plainly}
        )
        original, drafters[PLACE] = drafters[PLACE], oracle
        try:
            experiment = Experiment(
                arms, {str(number): first_turn}, self.repeats, has_warm_up=lambda _: False
            )
            spent = self._spent(experiment.run(), list(arms))
        finally:
            drafters[PLACE] = original
        plain = [spent["before"], spent["after"]]
        setting = CONTROLLED, num_draft_tokens
        return [_trial(number, chat.workload, setting, False, spent[str(level)], plain) for level in levels]

    def _spent(self, rows: Sequence[Row], arms: Sequence[str]) -> dict[str, Spent]:
        """Return what each arm spent, in its fastest round."""
        found = {}
        for arm in arms:
            rounds = [
                [row for row in rows if (row["arm"], row["round"]) == (arm, number + 1)]
                for number in range(self.repeats)
            ]
            found[arm] = spent_of(min(rounds, key=lambda some: sum(row["decode_s"] for row in some)))
            self.advance()
        return found


def spent_of(rows: Sequence[Row]) -> Spent:
    """Return the sums over the turns of one run."""
    widths: Counter[int] = Counter()
    for row in rows:
        # by_position[i] counts drafts longer than i; differences give the number of drafts of each length.
        at_least = [drafted for drafted, _ in add_nested([row])[1]]
        widths[0] += row["num_forwards"] - (at_least[0] if at_least else 0)
        widths.update(
            {length: here - beyond for length, (here, beyond) in enumerate(pairwise([*at_least, 0]), 1)}
        )
    joules = [row["energy_j"] for row in rows]
    sums = {
        name: sum(row[name] for row in rows)
        for name in ("decode_s", "num_forwards", "num_drafted", "num_accepted", "drafter_s")
    }
    return Spent(
        tokens=tuple(token for row in rows for token in row["tokens"][0]),
        widths=tuple((length, count) for length, count in sorted(widths.items()) if count),
        joules=sum(joules) if joules and None not in joules else None,
        **sums,
    )


def _trial(
    number: int, workload: str, setting: tuple[str, int], is_gated: bool, spent: Spent, plain: Sequence[Spent]
) -> Trial:
    joules = [run.joules for run in plain if run.joules is not None]
    return Trial(
        number, workload, *setting, is_gated, spent,
        plain_tps=sum(len(run.tokens) for run in plain) / sum(run.decode_s for run in plain),
        is_equal=all(run.tokens == spent.tokens for run in plain),
        plain_joules=sum(joules) / len(joules) if len(joules) == len(plain) else None,
    )  # fmt: skip
