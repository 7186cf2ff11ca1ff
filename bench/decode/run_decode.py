"""`reprise bench decode`: decode chats plainly and with drafts, and compare tokens and times.

Each workload runs once unmeasured, then --repeats times plainly and in every draft configuration, all
interleaved, on one engine without HTTP. The best run of each turn gives the speed; all pairs of plain and
drafted runs are compared. Exit status 1 if any answer differs by a token; the report says where.

Drafter tables are cleared before each chat and there is no prefix cache, so a run shows what a chat gains
from its own text. By default this takes a quarter of an hour on two cores, with --workloads or --cases less.
"""

import argparse
from itertools import product

from reprise.bench import document, options, outputs
from reprise.bench.decode.answering import (
    PLAIN,
    Answering,
    Arm,
    Arms,
    check,
    make_cases,
    samples_of,
    settings_of,
)
from reprise.bench.decode.rows import COLUMNS, NOTES, divergences, rows_of
from reprise.bench.energy import EnergyMeter
from reprise.bench.errors import ArgumentsError
from reprise.bench.experiment import Row
from reprise.bench.local_engine import equal_costs
from reprise.bench.workloads import ENGLISH, VERSION, own_chats
from reprise.config.settings import Settings
from reprise.engine.speculative.costs.step_costs import StepCosts

DRAFT_TYPES = ("auto", "suffix", "ngram-simple", "ngram-mod", "draft-model", "mtp", "dflash")

FLAGS = (
    *options.shared(
        model=None, draft_model=None, workloads=None, prompts=None, draft_types=("auto",),
        num_draft_tokens=(31,), prompt_tokens=None, max_tokens=256, cases=None, repeats=3, seed=1,
        resume=None, **options.OUTPUTS,
    ),
    options.Flag("--streams", options.count, "N", 1, "Chats decoded at the same time."),
    options.Flag("--verify-all", None, None, None,
                 "Verify every draft, whether or not it pays, as if steps cost the same at every width."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_drafts(arguments, DRAFT_TYPES)
    pairs = product(arguments.draft_types, arguments.num_draft_tokens)
    arms = {"plain": PLAIN} | {f"{name} {length}": Arm(name, length) for name, length in pairs}
    arguments.workloads = arguments.workloads or ENGLISH
    settings = settings_of(
        arguments, **options.draft_model_settings(arguments), max_rows=max(8, arguments.streams),
        num_draft_tokens=max(arguments.num_draft_tokens),
    )  # fmt: skip
    costs = equal_costs(settings.num_draft_tokens + 1) if arguments.verify_all else None
    result, found = measure(arguments, settings, costs, arms)
    result["decode"] = found
    rows, notes = found["rows"], [*NOTES, *found["skipped"], *divergences(found["rows"])]
    title = f"Decoding {result['model']['name']} with drafts, compared with plain decoding"
    outputs.report(arguments, result, rows, outputs.Table(COLUMNS, title, notes))
    return int(any(row["parity"] == "FAIL" for row in rows))


def measure(
    arguments: argparse.Namespace, settings: Settings, costs: StepCosts | None, arms: Arms, stage: str = ""
) -> tuple[document.Document, Row]:
    """Answer chats on an engine in all arms; return a result document and the fields of its section.

    costs: step costs to use instead of learning them.
    """
    streams, count = getattr(arguments, "streams", 1), arguments.cases
    own = own_chats(arguments.prompts, arguments.workloads)
    work, meter = outputs.Work(), EnergyMeter()
    with work, meter, Answering(arguments, work, settings, costs, meter) as local:
        chats = [own] if own else local.chats((count or 1) * streams)
        cases = make_cases([alike[: count and count * streams] for alike in chats], streams)
        # Before the runs, so that the machine's load is that of other processes.
        result = document.new_document(arguments, local.engine.info, local.step_costs)
        resume = {"resume": getattr(arguments, "resume", None), "key": result["command"]}
        runs = local.compare(arms, cases, arguments.repeats, stage, **resume)
        rows = rows_of(runs, check(local, cases, runs))
        samples = samples_of(runs, cases, local.engine.tokenizer)
    if not runs:
        raise ArgumentsError("no chats: all are too long for this model's context, or fewer than --streams")
    return result, {
        **{name: getattr(arguments, name) for name in ("repeats", "seed", "max_tokens")},
        "workloads_version": VERSION, "energy": meter.source or meter.reason, "rows": rows,
        "samples": samples,
        "skipped": [f"{one}: chats skipped, too long for the model's context" for one in local.skipped],
    }  # fmt: skip
