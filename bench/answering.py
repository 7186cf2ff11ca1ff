"""Answer chats in several ways, called arms, and compare drafted answers with plain ones."""

import argparse
import codecs
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, zip_longest
from typing import Any

from reprise.bench.energy import EnergyMeter
from reprise.bench.experiment import Experiment, Progress, Row, grouped, measured, parity, total_parity
from reprise.bench.local_engine import LocalEngine
from reprise.bench.replay.rules import best_single_width
from reprise.bench.workloads import Chat, lengths_of, make_chats
from reprise.config.settings import Settings
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, DraftType, WindowSettings
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Case:
    """Chats that are answered at the same time.

    is_first: whether the case also runs once unmeasured, as a warm-up.
    prediction: token ids that each request sends as its predicted answer.
    """

    chats: tuple[Chat, ...]
    is_first: bool = False
    prediction: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Name the workload and its prompt length, if that can be chosen."""
        first = self.chats[0]
        return f"{first.workload}, {first.prompt_tokens} tokens" if first.prompt_tokens else first.workload


@dataclass(frozen=True)
class Arm:
    """A way to answer chats: a draft type, its draft length, and a WeDLM model's window_settings, if any.

    prepare: called with the engine and the case before each run; by default it empties the drafters' shared
        tables.
    memory: describes what these then hold.
    """

    draft_type: DraftType = "none"
    num_draft_tokens: int | None = None
    window_settings: WindowSettings | None = None
    prepare: Callable[[LocalEngine, Case], object] = lambda local, _: local.engine.table.reset()
    memory: str = ""


Arms = Mapping[str, Arm]
Cases = Mapping[str, Case]

PLAIN = Arm()
LOOKED_UP = ("auto", "suffix", "ngram-simple", "ngram-mod")
"""Draft types whose gain at other widths can be replayed from the text alone."""


class Answering(LocalEngine):
    """An engine in this process that answers cases, with the workloads, lengths and seed of a command.

    skipped: names of workloads and turns left out because a prompt left no room for an answer.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        progress: Progress,
        settings: Settings,
        costs: StepCosts | None = None,
        meter: EnergyMeter | None = None,
    ) -> None:
        super().__init__(settings, costs, progress.show)
        self.arguments, self.progress, self.meter = arguments, progress, meter
        self.skipped: dict[str, None] = {}

    def chats(self, count: int, is_short: bool = False) -> list[list[Chat]]:
        """Make a list of count chats for each requested workload and prompt length.

        is_short: use only the first prompt length of each workload.
        """
        given = self.arguments
        return [
            make_chats(name, count, given.seed, self.count_tokens, length)
            for name in given.workloads
            for length in lengths_of(name, getattr(given, "prompt_tokens", None))[: 1 if is_short else None]
        ]

    def compare(self, arms: Arms, cases: Cases, repeats: int, stage: str = "", **more: Any) -> list[Row]:
        """Run every arm on every case, alternating; return the measured rows, sorted by case and arm.

        stage: text before each case's label in the progress. more: further arguments of Experiment.
        """
        experiment = Experiment(
            {name: partial(self.run, arm=arm) for name, arm in arms.items()}, cases, repeats,
            lambda name: cases[name].is_first, label=lambda _, case: stage + cases[case].label, **more,
        )  # fmt: skip
        places = grouped(measured(experiment.run(self.progress)), "case", "arm")
        return [row for place in product(cases, arms) for row in places.get(place, ())]

    def run(self, case: Case, arm: Arm) -> list[Row]:
        """Answer the chats of a case once in an arm; return a row for each measured turn."""
        arm.prepare(self, case)
        first, choice = case.chats[0], DraftChoice(arm.draft_type, arm.num_draft_tokens)
        occupancy = self.engine.table.status()["occupancy"] if arm.memory else None
        rows = []
        for number, turns in enumerate(zip_longest(*(chat.turns for chat in case.chats)), 1):
            asked = [turn for turn in turns if turn]
            limit, seed = self.arguments.max_tokens, self.arguments.seed
            requests = self.requests(asked, choice, limit, seed, case.prediction)
            if not requests:
                self.skipped[f"{first.workload}, turn {number}"] = None
                continue
            before_j = self.meter.read() if self.meter else None
            ends = self.answer([replace(one, window_settings=arm.window_settings) for one in requests])
            after_j = self.meter.read() if self.meter else None
            if any(turn.is_measured for turn in asked):
                rows.append({
                    "workload": first.workload, "prompt_tokens": first.prompt_tokens, "turn": number,
                    "draft_type": arm.draft_type, "num_draft_tokens": arm.num_draft_tokens,
                    "memory": arm.memory, "occupancy": occupancy,
                    "energy_j": None if before_j is None or after_j is None else after_j - before_j,
                    **row_of(ends),
                })  # fmt: skip
        return rows


SUMMED = ("num_drafted", "num_accepted", "num_fed", "drafter_s", "charged_s", "charged_plain_s")


def row_of(ends: Sequence[Finished]) -> Row:
    """Return the row of one turn: the figures of its answers, one answer per concurrent stream.

    tokens, origins: one entry per stream. decode_s: from the end of prefill to the last token; with several
        streams, from submission to the last of all tokens. prefill_s: from admission to the end of all
        prefill. first_token_s: mean over streams. by_source: [drafted, accepted] tokens of each drafter;
        by_position: the same of each position in a draft.
    """
    usages = [end.usage for end in ends]
    reports = [usage.drafting for usage in usages]
    by_source, by_position = add_nested(
        {"by_source": {name: pair for name, *pair in one.by_source}, "by_position": one.by_position}
        for one in reports
    )
    return {
        "streams": len(ends), "tokens": [list(end.tokens) for end in ends],
        "origins": [[list(one) for one in report.origins] for report in reports],
        "num_tokens": sum(len(end.tokens) for end in ends),
        "num_prefilled": sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages),
        "prefill_s": max(usage.prefill_s for usage in usages) - min(usage.queue_s for usage in usages),
        "first_token_s": sum(usage.first_token_s for usage in usages) / len(usages),
        "decode_s": max(usage.total_s for usage in usages) - (usages[0].prefill_s if len(ends) == 1 else 0.0),
        "num_forwards": sum(end.usage.drafting.num_forwards or len(end.tokens) for end in ends),
        "by_source": by_source, "by_position": by_position,
        "translation": add_counts(report.translation for report in reports),
        **{name: sum(getattr(one, name) for one in reports) for name in SUMMED},
    }  # fmt: skip


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up the counts of each name."""
    return dict(sum(map(Counter, counts), Counter()))


def add_nested(rows: Iterable[Row]) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Add up the fields by_source and by_position of several rows; see row_of()."""
    by_source: dict[str, list[int]] = {}
    by_position: list[list[int]] = []
    for row in rows:
        for name, pair in row["by_source"].items():
            by_source[name] = [a + b for a, b in zip(by_source.get(name, (0, 0)), pair, strict=True)]
        pairs = zip_longest(by_position, row["by_position"], fillvalue=(0, 0))
        by_position = [[a + c, b + d] for (a, b), (c, d) in pairs]
    return by_source, by_position


def make_cases(chats: Iterable[Sequence[Chat]], streams: int = 1) -> dict[str, Case]:
    """Group chats into cases of `streams` concurrent chats, by name; an incomplete group is left out.

    chats: a list of chats for each workload and prompt length.
    """
    cases = {}
    for alike in chats:
        for at in range(0, len(alike) - streams + 1, streams):
            together = tuple(alike[at : at + streams])
            name = f"{together[0].workload} {together[0].prompt_tokens or ''} {at // streams}"
            cases[name] = Case(together, is_first=at == 0)
    return cases


def check(local: LocalEngine, cases: Cases, runs: Sequence[Row]) -> list[Row]:
    """Compare drafted answers with plain ones; return a row for each case, turn and drafting arm.

    A row has case, turn, arm, the fields of parity(), and perhaps best_width: the speedup, by measured costs,
    if all steps had the best single width. Only for a single chat of one turn, without a schema, drafted from
    its own text.
    """
    answers = grouped(runs, "case", "turn", "arm")
    checks = []
    for (name, turn, arm), drafted in answers.items():
        if arm == "plain":
            continue
        chats, plain = cases[name].chats, answers[name, turn, "plain"]
        turns = [chat.turns[turn - 1] for chat in chats if turn <= len(chat.turns)]
        prompts = [local.prompt_of(one) for one in turns]
        of_streams = [
            parity(
                [run["tokens"][stream] for run in plain], [run["tokens"][stream] for run in drafted],
                lambda before, prompt=prompt: local.engine.margin((*prompt, *before)),  # type: ignore[misc]
            )
            for stream, prompt in enumerate(prompts)
        ]  # fmt: skip
        found = {"case": name, "turn": turn, "arm": arm, **total_parity(of_streams)}
        is_alone = len(chats) == len(chats[0].turns) == 1 and not turns[0].schema
        costs, length, kind = local.step_costs, drafted[0]["num_draft_tokens"], drafted[0]["draft_type"]
        # Costs that are not this machine's say nothing about what its best width would gain.
        if is_alone and length and costs and kind in LOOKED_UP:
            tokens = drafted[0]["tokens"][0]
            found["best_width"] = best_single_width(costs, kind, prompts[0], tokens, length + 1)
        checks.append(found)
    return checks


def samples_of(runs: Sequence[Row], cases: Cases, tokenizer: Tokenizer) -> list[Row]:
    """Return a sample answer per workload and draft type: from its first run, the first chat's last turn."""
    samples = []
    drafted = (run for run in runs if run["draft_type"] != "none")
    for first, *others in grouped(drafted, "workload", "draft_type").values():
        same = [run for run in others if all(run[name] == first[name] for name in ("case", "arm", "round"))]
        run = [first, *same][-1]
        turn = cases[run["case"]].chats[0].turns[run["turn"] - 1]
        said = [(one["role"], one.get("content") or one.get("tool_calls") or "") for one in turn.messages]
        samples.append({
            **{name: run[name] for name in ("workload", "draft_type", "num_draft_tokens", "turn")},
            "prompt": turn.text or "\n\n".join(f"{role}: {content}" for role, content in said),
            "tokens": token_texts(run["tokens"][0], run["origins"][0], tokenizer.piece, tokenizer.eos_ids),
        })  # fmt: skip
    return samples


def token_texts(
    tokens: Sequence[int],
    origins: Iterable[tuple[str, int]],
    token_bytes: Callable[[int], bytes],
    eos_ids: Collection[int],
) -> list[list[str]]:
    """Return [text, source] of each token except end tokens.

    A character made of several tokens belongs to the last of them.
    origins: (source, number of tokens) of consecutive tokens.
    """
    sources = [source for source, length in origins for _ in range(length)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        [decoder.decode(token_bytes(token)), source]
        for token, source in zip(tokens, sources, strict=True)
        if token not in eos_ids
    ]
