"""Answer chats on an engine, and describe each turn in a row that JSON has."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from bench.energy import EnergyMeter
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.workloads import Chat
from engine.request import DraftChoice, DraftType, Finished


@dataclass
class Answering:
    """How chats are answered on an engine.

    skipped: for (workload, turn), the numbers of times that a prompt left no room for an answer.
    """

    local: LocalEngine
    max_tokens: int
    seed: int
    meter: EnergyMeter | None = None
    skipped: Counter[tuple[str, int]] = field(default_factory=Counter)

    def run(
        self,
        chats: Sequence[Chat],
        draft_type: DraftType,
        num_draft_tokens: int | None = None,
        is_free: bool = False,
        prediction: tuple[int, ...] = (),
        keeps_tables: bool = False,
    ) -> list[Row]:
        """Answer concurrent chats; return a row for each turn that is measured.

        is_free: schemas are ignored. keeps_tables: drafters do not forget first.
        """
        if not keeps_tables:
            self.local.engine.table_reset()
        rows = []
        for number, turns in enumerate(zip_longest(*(chat.turns for chat in chats)), 1):
            asked = [replace(turn, schema=None) if is_free else turn for turn in turns if turn]
            draft = DraftChoice(draft_type, num_draft_tokens)
            requests = self.local.requests(asked, draft, self.max_tokens, self.seed, prediction)
            if not requests:
                self.skipped[chats[0].workload, number] += 1
                continue
            before_j = self.meter.read() if self.meter else None
            ends = self.local.answer(requests)
            after_j = self.meter.read() if self.meter else None
            if any(turn.is_measured for turn in asked):
                joules = None if before_j is None or after_j is None else after_j - before_j
                rows.append({"turn": number} | row_of(ends, joules))
        return rows


def row_of(ends: Sequence[Finished], energy_j: float | None = None) -> Row:
    """Return the row of all streams' answers to one turn.

    tokens, origins: one entry per stream. decode_s: from the end of prefill to the last token; with several
    streams, from submission to the last token of all. prefill_s: from admission to the end of all prefill.
    first_token_s: mean over streams. by_source: [drafted, accepted]; by_position: the same for each position.
    """
    usages = [end.usage for end in ends]
    reports = [usage.drafting for usage in usages]
    longest = max(len(report.by_position) for report in reports)
    return {
        "streams": len(ends),
        "tokens": [list(end.tokens) for end in ends],
        "origins": [[list(one) for one in report.origins] for report in reports],
        "num_tokens": sum(len(end.tokens) for end in ends),
        "num_prefilled": sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages),
        "prefill_s": max(usage.prefill_s for usage in usages) - min(usage.queue_s for usage in usages),
        "first_token_s": sum(usage.first_token_s for usage in usages) / len(usages),
        "decode_s": max(usage.total_s for usage in usages) - (usages[0].prefill_s if len(ends) == 1 else 0.0),
        "num_forwards": sum(
            report.num_forwards or len(end.tokens) for report, end in zip(reports, ends, strict=True)
        ),
        "num_drafted": sum(report.num_drafted for report in reports),
        "num_accepted": sum(report.num_accepted for report in reports),
        "by_source": {
            name: [
                sum(counts)
                for counts in zip(
                    *(one[1:] for r in reports for one in r.by_source if one[0] == name), strict=True
                )
            ]
            for name in dict.fromkeys(one[0] for report in reports for one in report.by_source)
        },
        "by_position": [
            [
                sum(report.by_position[at][which] for report in reports if at < len(report.by_position))
                for which in (0, 1)
            ]
            for at in range(longest)
        ],
        "drafter_s": sum(report.drafter_s for report in reports),
        "open_s": sum(report.drafter_open_s for report in reports),
        "translation": dict(sum((Counter(report.translation) for report in reports), Counter())),
        "energy_j": energy_j,
    }


def add_nested(rows: Sequence[Row]) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Return by_source and by_position over all rows."""
    by_source: dict[str, list[int]] = {}
    by_position: list[list[int]] = []
    for row in rows:
        for name, pair in row["by_source"].items():
            sums = by_source.setdefault(name, [0, 0])
            sums[:] = [sums[0] + pair[0], sums[1] + pair[1]]
        by_position += [[0, 0] for _ in range(len(row["by_position"]) - len(by_position))]
        for sums, pair in zip(by_position, row["by_position"], strict=False):
            sums[:] = [sums[0] + pair[0], sums[1] + pair[1]]
    return by_source, by_position
