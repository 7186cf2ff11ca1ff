"""`reprise bench economics`: measure when drafting pays, and advise which draft type and length to use.

Measure when drafting pays. A drafter that knows the answer makes errors at chosen rates, so that every
acceptance rate occurs at every draft length; from these runs tokens/s = a + b * acceptance and the break-even
acceptance are fitted. The real drafters run on chats with every draft verified; --draft-type auto runs as on
a server, which leaves out drafts that do not pay. Every run is compared with plain runs of the same chat
before and after it. The report ends with advice. Times are of decoding only; drafters see only the chat
itself.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import chain, product, zip_longest
from typing import Any

from rich.console import Console

from bench import document, options, outputs
from bench.decode.answering import Answering, Arm, Case, chats_of, settings_of
from bench.economics.figures import INTERVALS, frame_of, section
from bench.economics.trials import (
    CONTROLLED,
    PLACE,
    ControlledDrafter,
    chance_for,
    forced_costs,
    make_trials,
    with_predictions,
)
from bench.energy import EnergyMeter
from bench.errors import BenchError
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.tables import Column, interval, pivoted, print_rows
from bench.workloads import Chat, own_chats
from engine.request import DraftType

TYPES: tuple[DraftType, ...] = ("suffix", "ngram-mod", "ngram-simple")
MODEL: DraftType = "draft-model"
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The acceptance rates that are aimed at; the analysis uses the measured ones."""

FORCED = "every draft verified, "
_WIDTH = 120

_LENGTH, _RUNS = Column("num_draft_tokens", "draft tokens"), Column("n", "runs")
_DRAFTS = Column(lambda row: row["draft_type"] + (", gated" if row.get("is_gated") else ""), "drafts")
_SHARES = Column(lambda row: interval(row, digits=3), "95 %")
TABLES: dict[str, tuple[str, Sequence[Column]]] = {
    "fits": ("Tokens/s = a + b * acceptance, for drafts that are free to make", (
        _LENGTH, _RUNS, Column("a", "a", "1"), Column("b", "b", "1"), Column("r_squared", "r²", "2"),
        Column("step_cost", "step cost,\nplain steps", "2"), Column("break_even", "break-even", "3"), _SHARES,
    )),
    "draft_model": ("Break-even of the draft model, its own time included", (
        _LENGTH, Column("break_even", "break-even", "3"), _SHARES,
    )),
    "choices": ("Draft types and lengths, compared with plain decoding of the same chats", (
        Column("workload", "workload"), _DRAFTS, Column("num_draft_tokens", "max draft"),
        Column("n", "chats"), Column("acceptance", "accepted", "%"),
        Column("share_drafted", "of answer", "%"), Column("speedup", "speedup", "2"),
        Column(interval, "95 %"),
    )),
    "errors": ("Errors of predicted speedups", (
        Column("by", "predicted by"), _DRAFTS, _RUNS, Column("median_error", "median", "%"),
        Column("mean_error", "mean", "%"),
    )),
    "energy": ("Joules per token, including prefill and everything else that ran", (
        Column("workload", "workload"), _DRAFTS, _LENGTH, Column("energy_j_per_token", "drafted", "3"),
        Column("plain_j_per_token", "plain", "3"), Column("ratio", "ratio", "2"),
    )),
}  # fmt: skip
"""Title and columns of each table, by the part of the section that has its rows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench economics` to the parser."""
    options.add(
        parser, model=None, draft_model=None, workloads=("edits", "passage", "free"), prompts=None,
        prompt_tokens=None, num_draft_tokens=(1, 2, 4, 8, 16), draft_types=TYPES, max_tokens=96,
        repeats=1, seed=1, **options.OUTPUTS,
    )  # fmt: skip
    text = "Chats of each workload, and as many for controlled acceptance; intervals need at least 3."
    options.declare(parser, options.Flag("--chats", options.count, "N", 6, text))


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    if arguments.draft_model and MODEL not in arguments.draft_types:
        arguments.draft_types += (MODEL,)
    options.check_drafts(arguments, (*TYPES, MODEL))
    own = own_chats(arguments.prompts, arguments.workloads)
    with EnergyMeter() as meter, outputs.Work() as work:
        trials, record = _measure(arguments, None if own is None else list(own), work, meter)
    if not trials:
        raise BenchError("every answer was too short to measure")
    curve = {int(one["width"]) - 1: one["seconds"] for one in record["cost_curve"]}
    found = record["economics"] = section(frame_of(trials), curve, meter.source, meter.reason)
    console = outputs.make_console(_WIDTH)
    _print(console, found)
    outputs.finish(console, arguments, record, found["points"])
    return 0


def _measure(
    arguments: argparse.Namespace, chats: list[Chat] | None, work: outputs.Work, meter: EnergyMeter
) -> tuple[list[Row], document.Document]:
    """Return all trials, and a result document without its section.

    The first engine runs as on a server, with step costs that it has just measured; the second one is made to
    verify every draft.
    """
    lengths, repeats = sorted(arguments.num_draft_tokens), arguments.repeats
    groups = [{f"{name} {k}": Arm(name, k) for name in arguments.draft_types} for k in lengths]
    # Step costs that another process measured earlier do not predict this run.
    fixed = options.draft_model_settings(arguments) | {"max_rows": 1, "calibration_file": None}
    with LocalEngine(settings_of(arguments, **fixed)) as local:
        chats = chats or [*chain(*chats_of(arguments, local, arguments.chats, is_short=True))]
        record = document.new_document(arguments, local.engine.info, local.engine.costs)
        cases = {str(number): Case((chat,)) for number, chat in enumerate(chats)}
        mixed = _mixed(cases, arguments.chats)
        work.weight = len(cases) * (3 + sum(len(group) + 1 for group in groups) + 1) * repeats
        work.weight += len(mixed) * (1 + len(lengths) * (1 + len(LEVELS))) * repeats
        answering = Answering(local, arguments.max_tokens, arguments.seed, work, meter)
        gated = [{"auto": Arm("auto", local.engine.settings.num_draft_tokens)}]
        trials = make_trials(answering, cases, gated, repeats, "auto, as on a server: ", is_gated=True)
    settings = settings_of(arguments, **fixed, num_draft_tokens=max(lengths))
    with LocalEngine(settings, forced_costs(max(lengths))) as local:
        answering = Answering(local, arguments.max_tokens, arguments.seed, work, meter)
        oracle = ControlledDrafter(local.engine.info.vocab_size)
        local.drafters[PLACE] = oracle
        controlled = [{str(level): _controlled(oracle, level, k) for level in LEVELS} for k in lengths]
        work.begin("every draft verified: warming up")
        known = dict(with_predictions(answering, mixed))
        for group, case in product(controlled, [*known.values()][:1]):
            # The first step of a new shape may have to build kernels.
            answering.run(case, group["1.0"])
        stage = f"{FORCED}controlled acceptance: "
        trials += make_trials(answering, known, controlled, repeats, stage, CONTROLLED)
        trials += make_trials(answering, cases, groups, repeats, f"{FORCED}real drafters: ")
    return trials, record


def _controlled(oracle: ControlledDrafter, level: float, length: int) -> Arm:
    """Return an arm whose drafts come from the oracle alone: type draft-model uses no lookups."""

    def prepare(local: LocalEngine) -> None:
        local.engine.table_reset()
        oracle.chance = chance_for(level, length)

    return Arm(MODEL, length, prepare=prepare)


def _mixed(cases: Mapping[str, Case], count: int) -> dict[str, Case]:
    """Return count cases, alternating between workloads."""
    groups: dict[str, list[str]] = {}
    for name, case in cases.items():
        groups.setdefault(case.chats[0].workload, []).append(name)
    turns = chain.from_iterable(zip_longest(*groups.values()))
    return {name: cases[name] for name in [one for one in turns if one is not None][:count]}


def _print(console: Console, found: Mapping[str, Any]) -> None:
    """Print the tables and then the advice."""
    console.print(f"Plain decoding: {found['plain_tps']:.1f} tokens/s", highlight=False)
    energy = found["energy"]
    for name, (title, columns) in TABLES.items():
        if rows := found[name] if name != "energy" else energy["rows"]:
            print_rows(console, rows, columns, title)
    buckets = sorted(found["buckets"], key=lambda row: row["num_draft_tokens"])
    table, columns = pivoted(
        buckets, [Column("label", "acceptance")], "num_draft_tokens",
        lambda row: f"{row['speedup']:.2f} ({row['n']})", "{} drafted",
    )  # fmt: skip
    table.sort(key=lambda row: int(row["label"].split()[0]))
    title = "Speedup by acceptance (number of runs), every draft verified"
    print_rows(console, table, columns, title)
    count, failed = len(found["points"]), sum(row["parity"] == "FAIL" for row in found["points"])
    console.print(
        f"{failed} of {count} drafted answers differ from the plain ones; run reprise verify."
        if failed
        else f"All {count} drafted answers equal the plain ones, token by token."
    )
    console.print(INTERVALS, style="dim")
    reason = "" if energy["rows"] else f" ({energy['reason'] or 'no answer was measured'})"
    console.print(f"Energy: {energy['measured']}{reason}.", style="dim", highlight=False)
    for sentence in found["advice"]:
        console.print(f"- {sentence}", highlight=False, markup=False)
