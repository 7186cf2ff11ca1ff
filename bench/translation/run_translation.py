"""`reprise bench translation`: measure drafts of models with another vocabulary, by translation strategy.

For draft models x translation strategies x workloads x draft lengths, measure how many drafted tokens are
accepted, and the speedup against plain decoding of the same chats, alternating in the same run. Drafts of a
given length come from the draft model alone, and all of them are verified. An additional row has the lengths
that the engine chooses, leaving out drafts that do not pay, as --draft-type draft-model does on a server. All
token ids are compared. Exit status 1 if any differ.

With defaults this takes about four minutes for the bundled models on two cores.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from bench import document, options, outputs, tables
from bench.decode.answering import (
    Answering,
    Arm,
    add_nested,
    arms_of,
    chats_of,
    check,
    make_cases,
    num_runs,
    settings_of,
)
from bench.decode.rows import flat, print_divergences, rows_of
from bench.economics.trials import forced_costs
from bench.energy import EnergyMeter
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.statistics import ratio
from bench.tables import Column, positions
from bench.workloads import VERSION, Chat, own_chats
from config.setting import SettingsError
from config.settings import BUNDLED_MODEL, Settings
from engine.speculative.translation.translation import Strategy
from engine.text.tokenizer import TemplateError

PUBLISHED = (
    "Published, for models of billions of parameters (K. Fonal, arXiv:2604.16368): 10 % accepted of drafts "
    "encoded alone, 45 % with 5 tokens of context; 1.06 times as fast as plain at k = 2, 0.70 at k = 4."
)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return sentences on whether context beats naive, which lengths paid, and whether tokens are equal."""
    sentences = []
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        of_model = [row for row in rows if row["draft_model"] == name]
        said = (*_compared(of_model), *_paying([row for row in of_model if row["speedup"]]))
        sentences += [f"{name}: {sentence}" for sentence in said]
    if any(row["strategy"] != "none" for row in rows):
        sentences.append(PUBLISHED)
    failed, count = (sum(row[name] for row in rows) for name in ("parity_differing", "parity_pairs"))
    if failed:
        return [
            *sentences,
            f"{failed} of {count} pairs of a drafted and a plain answer differ; run reprise verify.",
        ]
    return [*sentences, f"All {count} pairs of a drafted and a plain answer are equal, token by token."]


def _compared(rows: Sequence[Row]) -> Iterator[str]:
    """Compare the acceptance with context to that without, for each workload and draft length."""
    cells: dict[tuple[str, int | None, int], dict[str, Row]] = {}
    for row in rows:
        if not row["is_adaptive"]:
            cell = row["workload"], row["prompt_tokens"], row["num_draft_tokens"]
            cells.setdefault(cell, {})[row["strategy"]] = row
    compared = {
        cell: (_counts(found["context"]), _counts(found["naive"]))
        for cell, found in cells.items()
        if {"context", "naive"} <= found.keys()
    }
    if not compared:
        return
    worse = [
        f"{workload} at k = {length} ({ours[1]} of {ours[0]} against {naive[1]} of {naive[0]})"
        for (workload, _, length), (ours, naive) in compared.items()
        if (ratio(ours[1], ours[0]) or 0.0) < (ratio(naive[1], naive[0]) or 0.0)
    ]
    with_context, without = (
        100 * (ratio(*(sum(pair[way][at] for pair in compared.values()) for at in (1, 0))) or 0.0)
        for way in (0, 1)
    )
    verdict = f"context is worse in {len(worse)} of them: {', '.join(worse)}."
    yield (
        f"acceptance is {with_context:.0f} % with context and {without:.0f} % without (naive), over "
        f"{len(compared)} pairs of workload and k; "
        + (verdict if worse else "context is at least as good as naive in all of them.")
    )


def _counts(row: Row) -> tuple[int, int]:
    """Return the numbers of drafted and accepted tokens."""
    drafted, accepted = (sum(pair[at] for pair in row["by_source"].values()) for at in (0, 1))
    return drafted, accepted


def _paying(rows: Sequence[Row]) -> Iterator[str]:
    """Give each strategy's mean speedup over workloads, by draft length, and where every answer paid."""
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        lengths: dict[str, list[Row]] = {}
        for row in sorted(rows, key=lambda row: (row["is_adaptive"], row["num_draft_tokens"])):
            if row["strategy"] == strategy:
                length = "adaptive" if row["is_adaptive"] else f"k = {row['num_draft_tokens']}"
                lengths.setdefault(length, []).append(row)
        parts = []
        for length, some in lengths.items():
            paid = [row["workload"] for row in some if row["speedup_low"] > 1]
            where = f"on {', '.join(paid)}" if paid else "nowhere"
            where = "everywhere" if len(paid) == len(some) else where
            parts.append(f"{length}: {geometric_mean(row['speedup'] for row in some):.2f} (paid {where})")
        yield f"{strategy}, speedup against plain: {'; '.join(parts)}."


BUNDLED_DRAFTS = tuple(BUNDLED_MODEL / name for name in ("draft_polish", "draft"))
STRATEGIES: tuple[Strategy, ...] = ("context", "naive", "shared", "none")
ACROSS: tuple[Strategy, ...] = ("context", "naive", "shared")
WITHIN: tuple[Strategy, ...] = ("none",)
"""The default strategies for draft models with another vocabulary, and with the same one."""

CASES = 2
COUNTS = ("translated", "absorbed", "resynchronised", "skipped")
"""Outcomes of translated drafts; see engine.speculative.translation.translator.TranslationCounts."""

_WIDTH = 120

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
    Column(lambda row: "adaptive" if row["is_adaptive"] else str(row["num_draft_tokens"]), "k"),
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench translation` to the parser."""
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
    options.declare(
        parser,
        options.Flag("--strategies", options.names, "A,B", None, f"Any of {', '.join(STRATEGIES)}. Default: "
                     f"{','.join(ACROSS)} with another vocabulary, {','.join(WITHIN)} with the same."),
        options.Flag("--translation-prefix-tokens", options.count, "P", 5,
                     "Committed tokens that the context strategy encodes with a draft."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    options.check_names("--strategies", arguments.strategies or (), STRATEGIES)
    options.check_lengths(arguments.num_draft_tokens)
    folders = arguments.draft_model or [one for one in BUNDLED_DRAFTS if (one / "config.json").is_file()]
    own = own_chats(arguments.prompts, arguments.workloads)
    pairs = pairs_of(
        arguments.model or Path(BUNDLED_MODEL), list(dict.fromkeys(folders)), arguments.strategies
    )
    rows: list[Row] = []
    refused: list[Row] = []
    record: document.Document = {}
    with EnergyMeter() as meter, outputs.Work() as work:
        for folder, about in pairs:
            try:
                # The adaptive engine comes first: it measures its step costs, which the document records.
                for is_adaptive in (True, False):
                    costs = None if is_adaptive else forced_costs(max(arguments.num_draft_tokens))
                    lengths = {} if is_adaptive else {"num_draft_tokens": max(arguments.num_draft_tokens)}
                    settings = settings_of(
                        arguments, draft_model=str(folder), draft_translation=about["strategy"], max_rows=1,
                        translation_prefix_tokens=arguments.translation_prefix_tokens,
                        # Step costs that another process measured earlier do not predict this run.
                        calibration_file=None, **lengths,
                    )  # fmt: skip
                    with LocalEngine(settings, costs) as local:
                        info = local.engine.info
                        record = record or document.new_document(arguments, info, local.engine.costs)
                        answering = Answering(local, arguments.max_tokens, arguments.seed, work, meter)
                        rows += _measure(arguments, answering, own, len(pairs), about, is_adaptive)
            except (SettingsError, TemplateError, ArgumentsError) as fault:
                refused.append(about | {"reason": str(fault)})
    if not rows:
        reasons = dict.fromkeys(one["reason"] for one in refused)
        raise ArgumentsError("; ".join(reasons) or "every chat is too long for this model's context")
    names = ("repeats", "seed", "max_tokens", "translation_prefix_tokens")
    record["translation"] = {
        "workloads_version": VERSION, **{name: getattr(arguments, name) for name in names}, "rows": rows,
        "refused": refused, "findings": findings(rows),
    }  # fmt: skip
    _print(arguments, rows, refused, record)
    return int(any(row["parity"] == "FAIL" for row in rows))


def _measure(
    arguments: argparse.Namespace,
    answering: Answering,
    own: Sequence[Chat] | None,
    num_pairs: int,
    about: Row,
    is_adaptive: bool,
) -> list[Row]:
    """Return the rows of a pair on one engine; only the very first case has a warm-up round."""
    local, lengths = answering.local, arguments.num_draft_tokens
    chats = [list(own or ())[: arguments.cases]]
    if own is None:
        chats = chats_of(arguments, local, arguments.cases or CASES)
    made = make_cases(chats)
    cases = {name: replace(case, is_first=at == 0) for at, (name, case) in enumerate(made.items())}
    if not answering.work.weight:
        of_both = sum(num_runs(cases, count, arguments.repeats) for count in (1, len(lengths)))
        answering.work.weight = num_pairs * of_both
    kind = "adaptive" if is_adaptive else "every draft verified"
    arms = [Arm("draft-model", k) for k in ([Settings().num_draft_tokens] if is_adaptive else lengths)]
    stage = f"{about['draft_model']}, {about['strategy']}, {kind}: "
    runs = answering.compare(arms_of(arms), cases, arguments.repeats, stage)
    rows = rows_of(runs, check(local, cases, runs), has_turns=False, more=more_of)
    return [about | {"is_adaptive": is_adaptive} | row for row in rows]


def _print(
    arguments: argparse.Namespace, rows: Sequence[Row], refused: Sequence[Row], record: document.Document
) -> None:
    console = outputs.make_console(_WIDTH)
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        of_model = ordered([row for row in rows if row["draft_model"] == name])
        tables.print_rows(console, of_model, COLUMNS, f"Drafts of {name} for {record['model']['name']}")
    for note in NOTES:
        console.print(note, style="dim", highlight=False)
    print_divergences(console, rows)
    for one in refused:
        note = f"! {one['draft_model']}, {one['strategy']}: skipped: {one['reason']}"
        console.print(note, style="yellow", highlight=False, markup=False)
    outputs.finish(console, arguments, record, [flat(row) for row in rows])
    for sentence in record["translation"]["findings"]:
        console.print(f"- {sentence}", highlight=False, markup=False)


def pairs_of(
    target: Path, folders: Sequence[Path], requested: Sequence[Strategy] | None
) -> list[tuple[Path, Row]]:
    """Return all pairs to measure: the folder of the draft model, its short name, and the strategy.

    requested: strategies; None: the defaults for each draft model.
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
        name = short if times[short] == 1 else str(folder)
        strategies = requested or (WITHIN if is_same else ACROSS)
        found += [(folder, {"draft_model": name, "strategy": strategy}) for strategy in strategies]
    return found


def more_of(drafted: Sequence[Row], beside: Sequence[Row]) -> Row:
    """Return figures of translated drafts; the extremes of speedup are over answers, which differ most."""
    best: dict[tuple[str, int], dict[str, float]] = {}
    for one in beside:
        speeds = best.setdefault((one["case"], one["turn"]), {})
        speeds[one["arm"]] = max(speeds.get(one["arm"], 0.0), one["num_tokens"] / one["decode_s"])
    speedups = [one[arm] / one["plain"] for one in best.values() if (arm := drafted[0]["arm"]) in one]
    drafter_s = sum(one["drafter_s"] for one in drafted)
    by_source, by_position = add_nested(drafted)
    num_drafted = by_source.get("draft-model", (0, 0))[0]
    return {
        "speedup_low": min(speedups), "speedup_high": max(speedups),
        "drafted_per_draft": ratio(num_drafted, sum(count for count, _ in by_position[:1])),
        "draft_model_share": drafter_s / sum(one["decode_s"] for one in drafted),
        "drafted_per_s": ratio(num_drafted, drafter_s),
        **{name: sum(one["translation"].get(name, 0) for one in drafted) for name in COUNTS},
    }  # fmt: skip


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows so that those that differ only in strategy are adjacent, otherwise in the given order."""
    workloads = list(dict.fromkeys((row["workload"], row["prompt_tokens"]) for row in rows))
    places = {workload: at for at, workload in enumerate(workloads)}
    return sorted(
        rows,
        key=lambda row: (
            places[row["workload"], row["prompt_tokens"]], row["is_adaptive"], row["num_draft_tokens"],
        ),
    )  # fmt: skip


def _speedup(row: tables.Row) -> str:
    names = ("speedup", "speedup_low", "speedup_high")
    return "{} ({} {})".format(*(tables.format_value(row[name], "2") for name in names))
