"""`reprise bench decode`: decode chats plainly and with drafts, alternating, and compare tokens and times.

Runs the engine without HTTP. Drafter tables are cleared before each chat and there is no prefix cache, so a
run shows what a chat gains from its own text: later turns from earlier ones.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product

from rich.console import Console

from bench import argument_types, document, draft_model, outputs
from bench.decode.measuring import Group, make_groups, measure, num_configurations, num_rounds
from bench.decode.progress import WorkProgress
from bench.decode.rows import Trial, rows_of
from bench.decode.runs import Configuration, Runner
from bench.decode.samples import Samples
from bench.decode.table import COLUMNS, flat, print_rows
from bench.energy import EnergyMeter
from bench.local_engine import LocalEngine
from bench.workloads import ENGLISH, VERSION, WORKLOADS, Chat, lengths_of, make_chats, read_prompts
from config.settings import Settings

SUMMARY = "Decode chats plainly and with drafts, and compare tokens and times."
DRAFT_TYPES = ("auto", "suffix", "ngram-simple", "ngram-mod", "draft-model")
_WIDTH = 120
_MAX_DRAFT_TOKENS = 255

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
    parser.epilog = "workloads:\n" + "\n".join(
        f"  {one.name:{names}}  {one.summary}"
        + (f"; {' and '.join(map(str, one.prompt_tokens))} tokens" if one.prompt_tokens else "")
        for one in WORKLOADS.values()
    )
    add = parser.add_argument
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled model.")
    draft_model.add_arguments(parser, "Draft model for the draft type draft-model; auto then uses it too.")
    add("--workloads", type=_names, metavar="A,B",
        help="Generated workloads. Default: all but the Polish ones; none with --prompts.")  # fmt: skip
    add("--prompts", type=argument_types.input_file, metavar="FILE",
        help='Your own chats: JSON lines of chat requests, {"messages": [...]}, as `reprise serve --record` '
        "writes them.")  # fmt: skip
    add("--draft-types", type=_names, default=("auto",), metavar="X,Y",
        help=f"Any of {', '.join(DRAFT_TYPES)}. Default: auto.")  # fmt: skip
    add("--num-draft-tokens", type=argument_types.levels, default=(31,), metavar="K,L",
        help="Maximum draft lengths, each combined with every draft type. Default: 31.")  # fmt: skip
    add("--prompt-tokens", type=argument_types.levels, metavar="N,M",
        help="Approximate prompt lengths, for workloads of variable length. "
        "Default: the workload's.")  # fmt: skip
    add("--max-tokens", type=argument_types.count, default=256, metavar="N",
        help="Maximum tokens of each answer. Default: 256.")  # fmt: skip
    add("--cases", type=argument_types.count, metavar="N",
        help="Chats of each workload and length, per stream. Default: 1; with --prompts all.")  # fmt: skip
    add("--repeats", type=argument_types.count, default=3, metavar="N",
        help="Measured runs of each chat. Default: 3.")  # fmt: skip
    add("--streams", type=argument_types.count, default=1, metavar="N",
        help="Chats decoded at the same time. Default: 1.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Seed of chats and sampling. Default: 1.")
    add("--columns", type=_names, metavar="A,B",
        help="Columns of the table, by their names in the JSON, or all.")  # fmt: skip
    outputs.add_arguments(parser, "Write the rows of the table to FILE.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    try:
        configurations = _configurations(arguments)
        workloads, columns = _workloads(arguments), _columns(arguments.columns)
        own_chats = _own_chats(arguments)
    except (OSError, ValueError) as fault:
        return _report_fault(fault)
    console = outputs.make_console(_WIDTH)
    with EnergyMeter() as meter, LocalEngine(_settings(arguments)) as local:
        runner = Runner(local, arguments.max_tokens, arguments.seed, meter)
        samples = Samples(local)
        try:
            groups = _groups(local, workloads, own_chats, arguments)
        except ValueError as fault:
            return _report_fault(fault)
        # Taken before the runs: the machine's load is then that of other processes, and the step costs are
        # those measured while nothing else ran.
        command = document.command_line(arguments)
        record = document.new_document(command, local.engine.info, local.engine.costs, decode={})
        trials = _measure(runner, groups, configurations, arguments.repeats, samples)
    if not trials:
        return _report_fault(ValueError("every chat is too long for this model's context"))
    rows = rows_of(trials)
    record["decode"] = {
        "workloads_version": VERSION,
        "repeats": arguments.repeats,
        "seed": arguments.seed,
        "max_tokens": arguments.max_tokens,
        "energy": meter.source or meter.reason,
        "rows": rows,
        "samples": samples.all(),
    }
    print_rows(
        console,
        rows,
        columns,
        f"Decoding {record['model']['name']} with drafts, compared with plain decoding",
    )
    for (workload, turn), chats in runner.skipped.items():
        note = f"! {workload}, turn {turn}: {len(chats)} chats skipped, too long for the model's context"
        console.print(note, style="yellow", highlight=False, markup=False)
    console.print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), highlight=False)
    outputs.write(arguments, record, [flat(row) for row in rows])
    return int(any(row["parity"] == "FAIL" for row in rows))


def _measure(
    runner: Runner,
    groups: Sequence[Group],
    configurations: Sequence[Configuration],
    repeats: int,
    samples: Samples,
) -> list[Trial]:
    weight = sum(g.weight * num_rounds(g, repeats) * num_configurations(g, configurations) for g in groups)
    trials = []
    with WorkProgress(Console(stderr=True), weight) as work:
        for group in groups:
            length = f", {group.prompt_tokens} tokens" if group.prompt_tokens else ""
            work.begin(f"{group.workload}{length}")
            group_trials = measure(runner, group, configurations, repeats, work.advance)
            samples.add(group.chats[0], group_trials)
            trials += group_trials
    return trials


def _groups(
    local: LocalEngine, workloads: Sequence[str], own_chats: Sequence[Chat], arguments: argparse.Namespace
) -> list[Group]:
    """Make all groups of chats. Raises ValueError if a prompt cannot be made."""
    count = (arguments.cases or 1) * arguments.streams
    chats = [
        make_chats(name, count, arguments.seed, local.count_tokens, length)
        for name in workloads
        for length in lengths_of(name, arguments.prompt_tokens)
    ]
    if own_chats:
        chats.append(list(own_chats))
    return make_groups(local, chats, arguments.streams, arguments.max_tokens)


def _configurations(arguments: argparse.Namespace) -> list[Configuration]:
    """Return every draft type with every draft length. Raises ValueError."""
    _check("--draft-types", arguments.draft_types, DRAFT_TYPES)
    if "draft-model" in arguments.draft_types and not arguments.draft_model:
        raise ValueError("--draft-types: draft-model needs a draft model; name one with --draft-model")
    if max(arguments.num_draft_tokens) > _MAX_DRAFT_TOKENS:
        raise ValueError(
            f"--num-draft-tokens: {max(arguments.num_draft_tokens)} is above {_MAX_DRAFT_TOKENS}"
        )
    return [Configuration(*pair) for pair in product(arguments.draft_types, arguments.num_draft_tokens)]


def _workloads(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the generated workloads to run. Raises ValueError."""
    if arguments.workloads is None:
        return () if arguments.prompts else ENGLISH
    _check("--workloads", arguments.workloads, tuple(WORKLOADS))
    return tuple(arguments.workloads)


def _columns(names: Sequence[str] | None) -> Sequence[str] | None:
    if names is None:
        return None
    if "all" in names:
        return tuple(COLUMNS)
    _check("--columns", names, (*COLUMNS, "all"))
    return names


def _own_chats(arguments: argparse.Namespace) -> list[Chat]:
    """Return the chats of --prompts. Raises OSError, ValueError."""
    if not arguments.prompts:
        return []
    chats = read_prompts(arguments.prompts)
    kept = chats[: arguments.cases * arguments.streams] if arguments.cases else chats
    if len(kept) < arguments.streams:
        raise ValueError(
            f"{arguments.prompts} has {len(kept)} chats; --streams {arguments.streams} needs at least as many"
        )
    return kept


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **draft_model.settings_of(arguments),
        max_rows=max(8, arguments.streams),
        num_draft_tokens=max(arguments.num_draft_tokens),
        prefix_cache_bytes=0,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _check(flag: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{flag}: {name} is not one of {', '.join(allowed)}")


def _report_fault(fault: Exception) -> int:
    print(f"reprise bench decode: {fault}", file=sys.stderr)
    return 2
