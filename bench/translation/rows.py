"""Compute rows: one for each draft model, strategy, workload and draft length."""

from collections.abc import Sequence
from typing import Any

from bench.decode.rows import Trial, row_of
from bench.translation.pairs import Pair

Row = dict[str, Any]

COUNTS = ("translated", "absorbed", "resynchronised", "skipped")
"""Outcomes of translated drafts; see engine.speculative.translation.translator.TranslationCounts."""


def rows_of(pair: Pair, is_adaptive: bool, trials: Sequence[Trial]) -> list[Row]:
    """Return rows over the trials of one pair, each over all chats and turns of a workload at one length.

    is_adaptive: whether the engine chose draft lengths itself, and could leave drafts out.
    """
    groups: dict[tuple[str, int | None, int], list[Trial]] = {}
    for trial in trials:
        key = trial.workload, trial.prompt_tokens, trial.configuration.num_draft_tokens
        groups.setdefault(key, []).append(trial)
    return [_row(pair, is_adaptive, group) for group in groups.values()]


def _row(pair: Pair, is_adaptive: bool, trials: Sequence[Trial]) -> Row:
    row = row_of(trials, None)
    runs = [run for trial in trials for run in trial.drafted]
    drafter_s = sum(run.counts.drafter_s for run in runs)
    num_drafted = sum(row["by_source"].get("draft-model", (0, 0))[:1])
    num_drafts = row["drafted_by_position"][0] if row["drafted_by_position"] else 0
    identity = {"draft_model": pair.name, "strategy": pair.strategy, "is_adaptive": is_adaptive}
    answers = [_speedup(trial) for trial in trials]
    figures = {
        # The extremes are over answers, not rounds: answers differ more than rounds do.
        "speedup_low": min(answers),
        "speedup_high": max(answers),
        "drafted_per_draft": num_drafted / num_drafts if num_drafts else None,
        "draft_model_share": drafter_s / sum(run.decode_s for run in runs),
        "drafted_per_s": num_drafted / drafter_s if drafter_s else None,
    }
    counted = {name: sum(run.counts.translation[name] for run in runs) for name in COUNTS}
    return identity | row | figures | counted


def _speedup(trial: Trial) -> float:
    """Return the speedup of one answer, from its best plain and best drafted run."""
    drafted, plain = (
        max(run.num_tokens / run.decode_s for run in runs) for runs in (trial.drafted, trial.plain)
    )
    return drafted / plain
