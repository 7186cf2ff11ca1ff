"""`reprise bench economics`: measure when drafting pays, and advise which draft type and length to use.

A drafter that knows the answer makes errors at chosen rates, so that every acceptance rate occurs at every
draft length; from these runs tokens/s = a + b * acceptance and the break-even acceptance are fitted. The real
drafters run on chats with every draft verified; --draft-type auto runs as on a server, which leaves out
drafts that do not pay. Every run is compared with plain runs of the same chat before and after it. Times are
of decoding only; drafters see only the chat itself.
"""

import argparse
from itertools import chain

from reprise.bench import document, options, outputs
from reprise.bench.decode.answering import Answering, Arm, Case, settings_of
from reprise.bench.economics.trials import LEVELS, controlled_trials, forced_costs, make_trials
from reprise.bench.energy import EnergyMeter
from reprise.bench.errors import BenchError
from reprise.bench.experiment import Row
from reprise.bench.tables import Column, print_rows
from reprise.bench.workloads import own_chats
from reprise.engine.interface.request import DraftType

TYPES: tuple[DraftType, ...] = ("suffix", "ngram-mod", "ngram-simple")
MODEL: DraftType = "draft-model"
TABLES = {
    "fits": "Tokens/s = a + b * acceptance, for drafts that are free to make",
    "draft_model": "Break-even of the draft model, its own time included",
    "choices": "Draft types and lengths, compared with plain decoding of the same chats",
    "errors": "Errors of predicted speedups",
    "energy": "Joules per token, including prefill and everything else that ran",
}
"""The title of each table, by the part of the section that has its rows."""


FLAGS = (
    *options.shared(
        model=None, draft_model=None, workloads=("edits", "passage", "free"), prompts=None,
        prompt_tokens=None, num_draft_tokens=(1, 2, 4, 8, 16), draft_types=TYPES, max_tokens=96, seed=1,
        **options.OUTPUTS,
    ),
    options.Flag("--chats", options.count, "N", 6, "Chats of each workload, and as many for controlled "
                 "acceptance; intervals need at least 3."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    if arguments.draft_model and MODEL not in arguments.draft_types:
        arguments.draft_types += (MODEL,)
    options.check_drafts(arguments, (*TYPES, MODEL))
    # Imported here, since it needs an extra.
    from reprise.bench.economics.figures import INTERVALS, section

    with EnergyMeter() as meter, outputs.Work() as work:
        trials, result = _measure(arguments, work, meter)
    if not trials:
        raise BenchError("every answer was too short to measure")
    curve = {one["width"] - 1: one["seconds"] for one in result["cost_curve"]}
    found = result["economics"] = section(trials, curve, meter.source, meter.reason)
    console, metered = outputs.make_console(120), found["energy"]["rows"]
    for name, title in TABLES.items():
        if rows := metered if name == "energy" else found[name]:
            print_rows(console, rows, [Column(one, one.replace("_", " ")) for one in rows[0]], title)
    failed = sum(row["parity"] == "FAIL" for row in trials)
    differ = f"{failed} of {len(trials)} drafted answers differ from the plain ones; run reprise verify."
    equal = f"All {len(trials)} drafted answers equal the plain ones, token by token."
    lines = [differ if failed else equal, INTERVALS]
    lines += [] if metered else [f"Energy: not measured ({meter.reason or 'no answer was measured'})."]
    lines += [f"- {sentence}" for sentence in found["advice"]]
    console.print(*lines, sep="\n", highlight=False, markup=False)
    outputs.finish(console, arguments, result, found["points"])
    return 0


def _measure(
    arguments: argparse.Namespace, work: outputs.Work, meter: EnergyMeter
) -> tuple[list[Row], document.Document]:
    """Return all trials, and a result document without its section.

    The first engine runs as on a server; the second one is made to verify every draft.
    """
    own, lengths = own_chats(arguments.prompts, arguments.workloads), sorted(arguments.num_draft_tokens)
    real = [[Arm(name, length) for name in arguments.draft_types] for length in lengths]
    # Step costs that another process learned earlier do not predict this run.
    fixed = {**options.draft_model_settings(arguments), "max_rows": 1, "costs_file": None}
    with Answering(arguments, work, settings_of(arguments, **fixed), meter=meter) as local:
        chats = own or chain(*local.chats(arguments.chats, is_short=True))
        result = document.new_document(arguments, local.engine.info, local.step_costs)
        cases = {str(number): Case((chat,)) for number, chat in enumerate(chats)}
        # Alternating between workloads, of which each has this many chats.
        mixed = sorted(cases.items(), key=lambda case: int(case[0]) % arguments.chats)[: arguments.chats]
        of_real, of_controlled = (len(lengths) * (1 + len(some)) for some in (arguments.draft_types, LEVELS))
        work.plan({"": len(cases) * (4 + of_real) + len(mixed) * (1 + of_controlled)})
        auto = Arm("auto", local.engine.settings.num_draft_tokens)
        trials = make_trials(local, cases, [[auto]], "auto, as on a server: ", is_gated=True)
    settings = settings_of(arguments, **fixed, num_draft_tokens=max(lengths))
    with Answering(arguments, work, settings, forced_costs(max(lengths)), meter) as local:
        stage = "every draft verified"
        work.begin(f"{stage}: warming up")
        trials += controlled_trials(local, dict(mixed), lengths, f"{stage}, controlled acceptance: ")
        trials += make_trials(local, cases, real, f"{stage}, real drafters: ")
    return trials, result
