"""Compare fixed and adaptive draft lengths with plain decoding of the same chats.

For each pair of draft model and strategy two engines run one after the other: one as on a server, and one
that verifies every draft. On each of them plain and drafted runs alternate.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

from rich.console import Console

from bench import document
from bench.decode.measuring import Group, make_groups, measure, num_configurations, num_rounds
from bench.decode.progress import WorkProgress
from bench.decode.rows import Trial
from bench.decode.runs import Configuration, Meter, Runner
from bench.economics.controlled import forced_costs
from bench.local_engine import LocalEngine
from bench.translation.pairs import Pair
from bench.translation.rows import Row, rows_of
from bench.workloads import Chat, lengths_of, make_chats
from config.settings import Settings

ADAPTIVE, FORCED = True, False
CASES = 2
"""Default number of chats per workload."""


@dataclass
class Trials:
    """Measures pairs, each with the same chats; use it as a context, so that the progress display ends.

    console: shows progress. rows: results. record: a result document without its section, once an engine ran.
    """

    arguments: argparse.Namespace
    own_chats: Sequence[Chat] | None
    num_pairs: int
    meter: Meter
    console: Console
    rows: list[Row] = field(default_factory=list)
    record: document.Document = field(default_factory=dict)
    _groups: list[Group] = field(default_factory=list)
    _work: WorkProgress | None = None

    def measure(self, pair: Pair) -> None:
        """Measure one pair.

        Raises ModelError or SettingsError if it cannot run, ValueError if a prompt cannot be made,
        RuntimeError if a request fails.
        """
        # The adaptive engine comes first: it measures its step costs, which the document records.
        for is_adaptive in (ADAPTIVE, FORCED):
            costs = None if is_adaptive else forced_costs(max(self.arguments.num_draft_tokens))
            with LocalEngine(settings_of(self.arguments, pair, is_adaptive), costs) as local:
                self._measure(pair, is_adaptive, local)

    def _measure(self, pair: Pair, is_adaptive: bool, local: LocalEngine) -> None:
        work = self._work or self._begin(local)
        runner = Runner(local, self.arguments.max_tokens, self.arguments.seed, self.meter)
        configurations, kind = (
            configurations_of(self.arguments, is_adaptive),
            "adaptive" if is_adaptive else "every draft verified",
        )
        trials: list[Trial] = []
        for group in self._groups:
            work.begin(f"{pair.name}, {pair.strategy}, {kind}: {group.workload}")
            trials += measure(runner, group, configurations, self.arguments.repeats, work.advance)
        self.rows += rows_of(pair, is_adaptive, trials)

    def _begin(self, local: LocalEngine) -> WorkProgress:
        """Make the chats, which needs a tokenizer, and start the progress display."""
        command = document.command_line(self.arguments)
        self.record = document.new_document(command, local.engine.info, local.engine.costs)
        self._groups = _groups(self.arguments, self.own_chats, local)
        weight = sum(
            group.weight
            * num_rounds(group, self.arguments.repeats)
            * num_configurations(group, configurations_of(self.arguments, is_adaptive))
            for is_adaptive in (ADAPTIVE, FORCED)
            for group in self._groups
        )
        self._work = WorkProgress(self.console, self.num_pairs * weight)
        return self._work.__enter__()

    def __enter__(self) -> "Trials":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is not None:
            self._work.__exit__(kind, fault, trace)


def settings_of(arguments: argparse.Namespace, pair: Pair, is_adaptive: bool) -> Settings:
    """Return the settings of an engine for a pair."""
    settings = Settings(
        model=str(arguments.model) if arguments.model else None,
        draft_model=str(pair.folder),
        draft_translation=pair.strategy,
        translation_prefix_tokens=arguments.translation_prefix_tokens,
        max_rows=1,
        prefix_cache_bytes=0,
        # Step costs that another process measured earlier do not predict this run.
        calibration_file=None,
    )
    return settings if is_adaptive else replace(settings, num_draft_tokens=max(arguments.num_draft_tokens))


def configurations_of(arguments: argparse.Namespace, is_adaptive: bool) -> list[Configuration]:
    """Return the configurations: the requested lengths, or the server's maximum if the engine adapts."""
    lengths = [Settings().num_draft_tokens] if is_adaptive else arguments.num_draft_tokens
    return [Configuration("draft-model", length) for length in lengths]


def _groups(
    arguments: argparse.Namespace, own_chats: Sequence[Chat] | None, local: LocalEngine
) -> list[Group]:
    """Return the chats as groups of one; only the very first group has a warm-up round."""

    chats = [list(own_chats or ())[: arguments.cases]]
    if own_chats is None:
        chats = [
            make_chats(name, arguments.cases or CASES, arguments.seed, local.count_tokens, length)
            for name in arguments.workloads
            for length in lengths_of(name)
        ]
    groups = make_groups(local, chats, 1, arguments.max_tokens)
    return [replace(group, is_first=at == 0) for at, group in enumerate(groups)]
