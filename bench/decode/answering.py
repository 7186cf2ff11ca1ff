"""Answer chats in several ways, called arms; describe each turn in a row that JSON has, and keep samples."""

import codecs
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from bench.energy import EnergyMeter
from bench.experiment import Experiment, Row, measured
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.workloads import Chat, Turn
from engine.model.tokenizer import Tokenizer
from engine.request import DraftChoice, DraftType, Finished


@dataclass(frozen=True)
class Arm:
    """A way to answer chats. is_free: schemas are ignored.

    prepare: called with the engine before each run; by default the drafters forget what they have seen.
    """

    draft_type: DraftType = "none"
    num_draft_tokens: int | None = None
    is_free: bool = False
    prepare: Callable[[LocalEngine], object] = lambda local: local.engine.table_reset()


PLAIN = Arm()


@dataclass(frozen=True, slots=True)
class Case:
    """Chats that are answered at the same time.

    weight: approximate duration of a run. is_first: whether it also runs unmeasured before.
    prediction: sent with each request.
    """

    chats: tuple[Chat, ...]
    weight: float = 1.0
    is_first: bool = False
    prediction: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Name the workload and its prompt length, if that can be chosen."""
        first = self.chats[0]
        return f"{first.workload}, {first.prompt_tokens} tokens" if first.prompt_tokens else first.workload

    @property
    def has_schema(self) -> bool:
        """Whether any turn has a schema, which drafted answers then follow."""
        return any(turn.schema for chat in self.chats for turn in chat.turns)


@dataclass
class Answering:
    """An engine that answers cases, and how.

    skipped: for each (workload, turn), the cases in which a prompt left no room for an answer.
    """

    local: LocalEngine
    max_tokens: int
    seed: int
    work: Work = field(default_factory=Work)
    meter: EnergyMeter | None = None
    skipped: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def compare(
        self,
        arms: Mapping[str, Arm],
        cases: Mapping[str, Case],
        repeats: int,
        stage: str | None = "",
        **more: Any,
    ) -> list[Row]:
        """Run every arm on every case, alternating; return the measured rows, by case and arm.

        stage: begins the name of each case in the progress; None: no case is shown. more: of Experiment.
        """

        def run(arm: Arm, case: Case) -> list[Row]:
            if arm.is_free and not case.has_schema:
                return []
            rows = self.run(case, arm)
            self.work.advance(case.weight)
            return rows

        def watch(_: str, case: str, __: int) -> None:
            if stage is not None:
                self.work.begin(stage + cases[case].label)

        experiment = Experiment(
            {name: partial(run, arm) for name, arm in arms.items()}, cases, repeats,
            lambda name: cases[name].is_first, watch=watch, **more,
        )  # fmt: skip
        rows, order = measured(experiment.run()), ([*cases], [*arms])
        return sorted(rows, key=lambda row: (order[0].index(row["case"]), order[1].index(row["arm"])))

    def run(self, case: Case, arm: Arm) -> list[Row]:
        """Answer the chats of a case once; return a row for each turn that is measured."""
        arm.prepare(self.local)
        first, choice = case.chats[0], DraftChoice(arm.draft_type, arm.num_draft_tokens)
        rows = []
        for number, turns in enumerate(zip_longest(*(chat.turns for chat in case.chats)), 1):
            asked = [replace(turn, schema=None) if arm.is_free else turn for turn in turns if turn]
            requests = self.local.requests(asked, choice, self.max_tokens, self.seed, case.prediction)
            if not requests:
                self.skipped.setdefault((first.workload, number), set()).add(id(case))
                continue
            before_j = self.meter.read() if self.meter else None
            ends = self.local.answer(requests)
            after_j = self.meter.read() if self.meter else None
            if any(turn.is_measured for turn in asked):
                joules = None if before_j is None or after_j is None else after_j - before_j
                rows.append({
                    "workload": first.workload, "prompt_tokens": first.prompt_tokens,
                    "draft_type": arm.draft_type, "num_draft_tokens": arm.num_draft_tokens,
                    "turn": number, **row_of(ends, joules),
                })  # fmt: skip
        return rows


def row_of(ends: Sequence[Finished], energy_j: float | None = None) -> Row:
    """Return the row of all streams' answers to one turn.

    tokens, origins: one entry per stream. decode_s: from the end of prefill to the last token; with several
    streams, from submission to the last token of all. prefill_s: from admission to the end of all prefill.
    first_token_s: mean over streams. by_source: [drafted, accepted]; by_position: the same for each position.
    """
    usages = [end.usage for end in ends]
    reports = [usage.drafting for usage in usages]
    nested = [
        {"by_source": {name: pair for name, *pair in one.by_source}, "by_position": one.by_position}
        for one in reports
    ]
    by_source, by_position = add_nested(nested)
    sums = {
        name: sum(getattr(one, name) for one in reports)
        for name in ("num_drafted", "num_accepted", "drafter_s")
    }
    return {
        "streams": len(ends),
        "tokens": [list(end.tokens) for end in ends],
        "origins": [[list(one) for one in report.origins] for report in reports],
        "num_tokens": sum(len(end.tokens) for end in ends),
        "num_prefilled": sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages),
        "prefill_s": max(usage.prefill_s for usage in usages) - min(usage.queue_s for usage in usages),
        "first_token_s": sum(usage.first_token_s for usage in usages) / len(usages),
        "decode_s": max(usage.total_s for usage in usages) - (usages[0].prefill_s if len(ends) == 1 else 0.0),
        "num_forwards": sum(end.usage.drafting.num_forwards or len(end.tokens) for end in ends),
        "by_source": by_source,
        "by_position": by_position,
        "open_s": sum(report.drafter_open_s for report in reports),
        "translation": dict(sum((Counter(report.translation) for report in reports), Counter())),
        "energy_j": energy_j,
        **sums,
    }


def add_nested(rows: Iterable[Row]) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Return by_source and by_position over all rows."""
    by_source: dict[str, list[int]] = {}
    by_position: list[list[int]] = []
    for row in rows:
        for name, pair in row["by_source"].items():
            by_source[name] = [a + b for a, b in zip(by_source.get(name, (0, 0)), pair, strict=True)]
        pairs = zip_longest(by_position, row["by_position"], fillvalue=(0, 0))
        by_position = [[a + c, b + d] for (a, b), (c, d) in pairs]
    return by_source, by_position


def samples_of(runs: Sequence[Row], cases: Mapping[str, Case], tokenizer: Tokenizer) -> list[Row]:
    """Return one answer per workload and draft type: the last turn of the first chat's first stream."""
    found: dict[tuple[str, str], Row] = {}
    for run in runs:
        last = found.setdefault((run["workload"], run["draft_type"]), run)
        is_same = (run["case"], run["arm"]) == (last["case"], last["arm"])
        if is_same and run["turn"] >= last["turn"]:
            found[run["workload"], run["draft_type"]] = run
    return [
        {
            **{name: run[name] for name in ("workload", "draft_type", "num_draft_tokens", "turn")},
            "prompt": prompt_text(cases[run["case"]].chats[0].turns[run["turn"] - 1]),
            "tokens": token_texts(run["tokens"][0], run["origins"][0], tokenizer.piece, tokenizer.eos_ids),
        }
        for run in found.values()
        if run["draft_type"] != "none"
    ]


def token_texts(
    tokens: Sequence[int],
    origins: Iterable[tuple[str, int]],
    token_bytes: Callable[[int], bytes],
    eos_ids: Collection[int],
) -> list[list[str]]:
    """Return [text, source] of each token except end tokens; a split character belongs to its last token."""
    sources = [source for source, length in origins for _ in range(length)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        [decoder.decode(token_bytes(token)), source]
        for token, source in zip(tokens, sources, strict=True)
        if token not in eos_ids
    ]


def prompt_text(turn: Turn) -> str:
    """Return a turn's prompt for display; several messages are prefixed with their roles."""
    if turn.text is not None:
        return turn.text
    texts = [str(message.get("content") or message.get("tool_calls") or "") for message in turn.messages]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"{one['role']}: {text}" for one, text in zip(turn.messages, texts, strict=True))
