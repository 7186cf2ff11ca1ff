"""`reprise bench translation`: measure drafts of models with other vocabularies, by translation strategy.

For each pair of draft model and strategy two engines run one after the other: one as on a server, and one
that verifies every draft. On each of them plain and drafted runs alternate.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import document, options, outputs, tables
from bench.decode.answering import Answering
from bench.decode.comparing import Configuration, Group, compare, make_groups, weight_of
from bench.decode.rows import Checks, divergence_text, flat, row_of
from bench.economics.controlled import forced_costs
from bench.energy import EnergyMeter
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.statistics import ratio
from bench.tables import Column, positions
from bench.translation.findings import findings
from bench.workloads import VERSION, Chat, lengths_of, make_chats, own_chats
from config.setting import SettingsError
from config.settings import BUNDLED_MODEL, Settings
from engine.model.tokenizer import TemplateError
from engine.speculative.translation.translation import Strategy

SUMMARY = "Measure drafts of models with another vocabulary, by translation strategy."
BUNDLED_DRAFTS = tuple(BUNDLED_MODEL / name for name in ("draft_polish", "draft"))
STRATEGIES: tuple[Strategy, ...] = ("context", "naive", "shared", "none")
ACROSS: tuple[Strategy, ...] = ("context", "naive", "shared")
WITHIN: tuple[Strategy, ...] = ("none",)
"""The default strategies for draft models with another vocabulary, and with the same one."""

CASES = 2
COUNTS = ("translated", "absorbed", "resynchronised", "skipped")
"""Outcomes of translated drafts; see engine.speculative.translation.translator.TranslationCounts."""

_WIDTH = 120
_DESCRIPTION = """\
For draft models x translation strategies x workloads x draft lengths, measure how many drafted tokens are
accepted, and the speedup against plain decoding of the same chats, alternating in the same run. Drafts of a
given length come from the draft model alone, and all of them are verified. An additional row has the lengths
that the engine chooses, leaving out drafts that do not pay, as --draft-type draft-model does on a server. All
token ids are compared. Exit status 1 if any differ.

With defaults this takes about four minutes for the bundled models on two cores.
"""

NOTES = (
    "accepted: acceptance rate; then the rates at positions 1, 2, 4 and 6 of a draft, in %.",
    "k: draft length; adaptive: the engine chooses lengths and may leave drafts out.",
    "speedup: of decoding, against interleaved plain runs; (from to): the lowest and highest of one answer.",
    "model: share of the time that the draft model takes.",
    "translated: drafts expressed in the target's tokens. absorbed: drafts that added nothing new. skipped:",
    "drafts without an exact translation. resync.: drafts that needed fewer committed tokens in front.",
    "tokens: whether all drafted runs have the same tokens as all plain runs.",
)

COLUMNS = [
    Column(lambda row: f"{row['workload']} {row['prompt_tokens'] or ''}".strip(), "workload"),
    Column("strategy", "strategy"),
    Column(lambda row: length_name(row), "k"),
    Column("acceptance", "ac-\ncepted", "%"),
    Column("acceptance_by_position", "accepted\nat 1 2 4 6", lambda value: positions(value, (1, 2, 4, 6))),
    Column("tokens_per_forward", "tok/\nfwd", "2"),
    Column(lambda row: _speedup(row), "speedup\n(from to)"),
    Column("draft_model_share", "mod-\nel", "%"),
    Column(
        lambda row: " ".join(f"{row[name]:>5}" for name in COUNTS), "translated absorbed\nresync. skipped"
    ),
    Column(lambda row: "equal" if row["parity"] == "PASS" else "FAIL", "tokens"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A draft model, with its folder and a short name, and a translation strategy."""

    folder: Path
    name: str
    strategy: Strategy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench translation` to the parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    options.add(
        parser, model=None, workloads=("edits_polish", "passages_polish", "records_polish", "edits"),
        prompts=None, num_draft_tokens=(2, 4, 6), cases=None, repeats=1, max_tokens=64, seed=1,
        **options.OUTPUTS,
    )  # fmt: skip
    names = " and ".join(folder.name for folder in BUNDLED_DRAFTS)
    parser.add_argument(
        "--draft-model", type=options.model_folder, action="append", metavar="DIR",
        help=f"May be repeated. Default: the bundled draft models, {names}.",
    )  # fmt: skip
    parser.add_argument(
        "--strategies", type=options.names, metavar="A,B",
        help=f"Any of {', '.join(STRATEGIES)}. Default: {','.join(ACROSS)} for a draft model with another "
        f"vocabulary, {','.join(WITHIN)} for one with the same.",
    )  # fmt: skip
    parser.add_argument(
        "--translation-prefix-tokens", type=options.count, default=5, metavar="P",
        help="Committed tokens that the context strategy encodes with a draft. Default: 5.",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    return outputs.run_command("reprise bench translation", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    options.check_names("--strategies", arguments.strategies or (), STRATEGIES)
    options.check_lengths(arguments.num_draft_tokens)
    folders = arguments.draft_model or [one for one in BUNDLED_DRAFTS if (one / "config.json").is_file()]
    chats = own_chats(arguments.prompts, arguments.workloads)
    pairs = pairs_of(
        arguments.model or Path(BUNDLED_MODEL), list(dict.fromkeys(folders)), arguments.strategies
    )
    rows: list[Row] = []
    refused = []
    record: document.Document = {}
    with EnergyMeter() as meter, outputs.Work() as work:
        for pair in pairs:
            try:
                # The adaptive engine comes first: it measures its step costs, which the document records.
                for is_adaptive in (True, False):
                    costs = None if is_adaptive else forced_costs(max(arguments.num_draft_tokens))
                    with LocalEngine(settings_of(arguments, pair, is_adaptive), costs) as local:
                        record = record or document.new_document(
                            arguments, local.engine.info, local.engine.costs
                        )
                        groups = _groups(arguments, chats, local)
                        if not work.weight:
                            work.weight = len(pairs) * sum(
                                weight_of([*groups.values()], ways, arguments.repeats)
                                for ways in map(partial(configurations_of, arguments), (True, False))
                            )  # fmt: skip
                        answering = Answering(local, arguments.max_tokens, arguments.seed, meter)
                        kind = "adaptive" if is_adaptive else "every draft verified"
                        runs, checks = compare(
                            answering, groups, configurations_of(arguments, is_adaptive), arguments.repeats,
                            work,
                            lambda group, pair=pair, kind=kind:  # type: ignore[misc]
                            f"{pair.name}, {pair.strategy}, {kind}: {group.chats[0].workload}",
                        )  # fmt: skip
                        rows += rows_of(pair, is_adaptive, runs, checks)
            except (SettingsError, TemplateError, ArgumentsError) as fault:
                refused.append({"draft_model": pair.name, "strategy": pair.strategy, "reason": str(fault)})
    if not rows:
        reasons = dict.fromkeys(one["reason"] for one in refused)
        raise ArgumentsError("; ".join(reasons) or "every chat is too long for this model's context")
    record["translation"] = {
        "workloads_version": VERSION,
        **{name: getattr(arguments, name) for name in ("repeats", "seed", "max_tokens")},
        "translation_prefix_tokens": arguments.translation_prefix_tokens,
        "rows": rows,
        "refused": refused,
        "findings": findings(rows),
    }  # fmt: skip
    _print(rows, refused, record)
    outputs.write(arguments, record, [flat(row) for row in rows])
    return int(any(row["parity"] == "FAIL" for row in rows))


def _print(rows: Sequence[Row], refused: Sequence[Row], record: document.Document) -> None:
    console = outputs.make_console(_WIDTH)
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        of_model = ordered([row for row in rows if row["draft_model"] == name])
        tables.print_rows(console, of_model, COLUMNS, f"Drafts of {name} for {record['model']['name']}")
    for note in NOTES:
        console.print(note, style="dim", highlight=False)
    for row in rows:
        if row["first_divergence"]:
            which = f"{row['draft_model']}, {row['strategy']}: {divergence_text(row)}"
            console.print(which, style="red", highlight=False, markup=False)
    for one in refused:
        note = f"! {one['draft_model']}, {one['strategy']}: skipped: {one['reason']}"
        console.print(note, style="yellow", highlight=False, markup=False)
    outputs.print_machine(console, record)
    for sentence in record["translation"]["findings"]:
        console.print(f"- {sentence}", highlight=False, markup=False)


def pairs_of(target: Path, folders: Sequence[Path], requested: Sequence[Strategy] | None) -> list[Pair]:
    """Return all pairs to measure, in order. requested: strategies; None: the defaults for each draft model.

    Raises OSError and ValueError for a folder whose tokenizer cannot be read.
    """
    # Imported here, because it loads mlx-lm, which takes a while.
    from engine.model.loading import load_tokenizer

    target_vocabulary = load_tokenizer(target).fingerprint
    times = Counter(folder.resolve().name for folder in folders)
    found = []
    for folder in folders:
        short = folder.resolve().name
        is_same = load_tokenizer(folder).fingerprint == target_vocabulary
        strategies = requested or (WITHIN if is_same else ACROSS)
        found += [Pair(folder, short if times[short] == 1 else str(folder), one) for one in strategies]
    return found


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
    arguments: argparse.Namespace, own: Sequence[Chat] | None, local: LocalEngine
) -> dict[str, Group]:
    """Return the chats as groups of one; only the very first group has a warm-up round."""
    chats = [list(own or ())[: arguments.cases]]
    if own is None:
        chats = [
            make_chats(name, arguments.cases or CASES, arguments.seed, local.count_tokens, length)
            for name in arguments.workloads
            for length in lengths_of(name)
        ]
    groups = make_groups(local, chats, 1, arguments.max_tokens)
    return {name: replace(group, is_first=at == 0) for at, (name, group) in enumerate(groups.items())}


def rows_of(pair: Pair, is_adaptive: bool, runs: Sequence[Row], checks: Checks) -> list[Row]:
    """Return rows over the runs of one pair, each over all chats and turns of a workload at one length.

    is_adaptive: whether the engine chose draft lengths itself, and could leave drafts out.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for one in runs:
        if one["draft_type"] != "none":
            groups.setdefault((one["workload"], one["prompt_tokens"], one["arm"]), []).append(one)
    return [_row(pair, is_adaptive, group, runs, checks) for group in groups.values()]


def _row(pair: Pair, is_adaptive: bool, drafted: Sequence[Row], runs: Sequence[Row], checks: Checks) -> Row:
    cases = {one["case"] for one in drafted}
    beside = [one for one in runs if one["case"] in cases]
    row = row_of(drafted, beside, checks)
    drafter_s = sum(one["drafter_s"] for one in drafted)
    num_drafted = row["by_source"].get("draft-model", (0, 0))[0]
    num_drafts = row["drafted_by_position"][0] if row["drafted_by_position"] else 0
    answers = [
        _best_speed(drafted, place) / _best_speed([one for one in beside if one["arm"] == "plain"], place)
        for place in dict.fromkeys((one["case"], one["turn"]) for one in drafted)
    ]
    figures = {
        # The extremes are over answers, not rounds: answers differ more than rounds do.
        "speedup_low": min(answers),
        "speedup_high": max(answers),
        "drafted_per_draft": ratio(num_drafted, num_drafts),
        "draft_model_share": drafter_s / sum(one["decode_s"] for one in drafted),
        "drafted_per_s": ratio(num_drafted, drafter_s),
        **{name: sum(one["translation"].get(name, 0) for one in drafted) for name in COUNTS},
    }
    identity = {"draft_model": pair.name, "strategy": pair.strategy, "is_adaptive": is_adaptive}
    return identity | row | figures


def _best_speed(runs: Sequence[Row], place: tuple[str, int]) -> float:
    return max(
        float(one["num_tokens"] / one["decode_s"]) for one in runs if (one["case"], one["turn"]) == place
    )


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows so that those that differ only in strategy are adjacent, otherwise in the given order."""
    workloads = list(dict.fromkeys((row["workload"], row["prompt_tokens"]) for row in rows))
    return sorted(
        rows,
        key=lambda row: (
            workloads.index((row["workload"], row["prompt_tokens"])),
            row["is_adaptive"], row["num_draft_tokens"],
        ),
    )  # fmt: skip


def length_name(row: tables.Row) -> str:
    """Return the draft length of a row, or "adaptive" if the engine chose it."""
    return "adaptive" if row["is_adaptive"] else str(row["num_draft_tokens"])


def _speedup(row: tables.Row) -> str:
    best, low, high = (
        tables.format_value(row[name], "2") for name in ("speedup", "speedup_low", "speedup_high")
    )
    return f"{best} ({low} {high})"
