"""`reprise bench decode`: decode chats plainly and with drafts, alternating, and compare tokens and times.

Runs the engine without HTTP. Drafter tables are cleared before each chat and there is no prefix cache, so a
run shows what a chat gains from its own text: later turns from earlier ones.
"""

import argparse
from itertools import product

from bench import document, options, outputs, tables
from bench.decode.answering import Answering
from bench.decode.comparing import Configuration, compare, make_groups, weight_of
from bench.decode.rows import COLUMNS, NOTES, divergence_text, flat, rows_of
from bench.decode.samples import samples_of
from bench.energy import EnergyMeter
from bench.errors import ArgumentsError
from bench.local_engine import LocalEngine
from bench.workloads import ENGLISH, VERSION, WORKLOADS, Chat, lengths_of, make_chats, read_prompts
from config.settings import Settings

SUMMARY = "Decode chats plainly and with drafts, and compare tokens and times."
DRAFT_TYPES = ("auto", "suffix", "ngram-simple", "ngram-mod", "draft-model")
_WIDTH = 120

_DESCRIPTION = """\
Decode chats plainly and with drafts, alternating, on one engine without HTTP, and compare every token. Each
workload runs once unmeasured, then --repeats times plainly and in every draft configuration, all interleaved.
The best run of each turn gives the speed; all pairs of plain and drafted runs are compared. Exit status 1 if
any answer differs by a token; the report says where it diverges and how close the two best tokens were there.

With defaults this takes about a quarter of an hour for the bundled model on two cores; each further draft
type or length adds about half of that. --workloads and --cases make it shorter.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench decode` to the parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    names = max(map(len, WORKLOADS))
    parser.epilog = "workloads (default: all but the Polish ones; none with --prompts):\n" + "\n".join(
        f"  {one.name:{names}}  {one.summary}"
        + (f"; {' and '.join(map(str, one.prompt_tokens))} tokens" if one.prompt_tokens else "")
        for one in WORKLOADS.values()
    )
    options.add(
        parser, model=None, draft_model=None, workloads=None, prompts=None, draft_types=("auto",),
        num_draft_tokens=(31,), prompt_tokens=None, max_tokens=256, cases=None, repeats=3, seed=1,
        resume=None,
        **options.OUTPUTS,
    )  # fmt: skip
    parser.add_argument(
        "--streams", type=options.count, default=1, metavar="N",
        help="Chats decoded at the same time. Default: 1.",
    )  # fmt: skip
    parser.add_argument(
        "--columns", type=options.names, metavar="A,B",
        help="Columns of the table, by their names in the JSON, or all.",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    return outputs.run_command("reprise bench decode", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    options.check_drafts(arguments, DRAFT_TYPES)
    configurations = [
        Configuration(*pair) for pair in product(arguments.draft_types, arguments.num_draft_tokens)
    ]
    names = arguments.workloads or (() if arguments.prompts else ENGLISH)
    options.check_names("--workloads", names, tuple(WORKLOADS))
    columns, own_chats = _columns(arguments.columns), _own_chats(arguments)
    count = (arguments.cases or 1) * arguments.streams
    with EnergyMeter() as meter, LocalEngine(_settings(arguments)) as local:
        chats = [
            make_chats(name, count, arguments.seed, local.count_tokens, length)
            for name in names
            for length in lengths_of(name, arguments.prompt_tokens)
        ]
        groups = make_groups(local, [*chats, own_chats], arguments.streams, arguments.max_tokens)
        # Taken before the runs: the machine's load is then that of other processes, and the step costs are
        # those measured while nothing else ran.
        record = document.new_document(arguments, local.engine.info, local.engine.costs, decode={})
        answering = Answering(local, arguments.max_tokens, arguments.seed, meter)
        with outputs.Work(weight_of(list(groups.values()), configurations, arguments.repeats)) as work:
            runs, checks = compare(
                answering, groups, configurations, arguments.repeats, work,
                lambda group: _label(group.chats[0]), arguments.resume, record["command"],
            )  # fmt: skip
        samples = samples_of(runs, groups, local.engine.tokenizer)
    if not runs:
        raise ArgumentsError("every chat is too long for this model's context")
    rows = rows_of(runs, checks)
    record["decode"] = {
        "workloads_version": VERSION,
        **{name: getattr(arguments, name) for name in ("repeats", "seed", "max_tokens")},
        "energy": meter.source or meter.reason,
        "rows": rows,
        "samples": samples,
    }
    console = outputs.make_console(_WIDTH)
    title = f"Decoding {record['model']['name']} with drafts, compared with plain decoding"
    tables.print_rows(console, rows, columns, title, NOTES)
    for row in rows:
        if row["first_divergence"]:
            console.print(divergence_text(row), style="red", highlight=False, markup=False)
    for workload, turn in answering.skipped:
        of_turn = sum(
            group.chats[0].workload == workload and len(group.chats[0].turns) >= turn
            and not any(run["case"] == name and run["turn"] == turn for run in runs)
            for name, group in groups.items()
        )  # fmt: skip
        note = f"! {workload}, turn {turn}: {of_turn} chats skipped, too long for the model's context"
        console.print(note, style="yellow", highlight=False, markup=False)
    outputs.print_machine(console, record)
    outputs.write(arguments, record, [flat(row) for row in rows])
    return int(any(row["parity"] == "FAIL" for row in rows))


def _label(chat: Chat) -> str:
    return f"{chat.workload}, {chat.prompt_tokens} tokens" if chat.prompt_tokens else chat.workload


def _columns(names: tuple[str, ...] | None) -> list[tables.Column]:
    if names is None:
        return [one for one in COLUMNS if one.is_shown]
    known = {str(one.name): one for one in COLUMNS}
    if "all" in names:
        return COLUMNS
    options.check_names("--columns", names, (*known, "all"))
    return [known[name] for name in names]


def _own_chats(arguments: argparse.Namespace) -> list[Chat]:
    """Return the chats of --prompts. Raises OSError, ValueError."""
    if not arguments.prompts:
        return []
    chats = read_prompts(arguments.prompts)
    kept = chats[: arguments.cases * arguments.streams] if arguments.cases else chats
    if len(kept) < arguments.streams:
        raise ArgumentsError(
            f"{arguments.prompts} has {len(kept)} chats; --streams {arguments.streams} needs at least as many"
        )
    return kept


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **options.draft_model_settings(arguments),
        max_rows=max(8, arguments.streams),
        num_draft_tokens=max(arguments.num_draft_tokens),
        prefix_cache_bytes=0,
    )
