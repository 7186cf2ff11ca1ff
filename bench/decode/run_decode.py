"""`reprise bench decode`: chats plainly and with drafts, in turns on one engine, tokens compared.

Runs the engine without HTTP. Before each chat everything that drafters remember is forgotten, and no prefix
is kept: a run shows what one chat gains from its own text, its later turns from its earlier ones.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product

from rich.console import Console

from bench import argument_types, document, draft_model, outputs
from bench.decode.measuring import Group, make_groups, measure, num_rounds, num_ways
from bench.decode.progress import Work
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
_LONGEST = 255

_DESCRIPTION = """\
Decode chats plainly and with drafts, in turns on one engine without HTTP, and compare every token. Each
workload is run once unmeasured, then --repeats times plainly and in every configuration of drafts, all
interleaved; of each turn the best run counts, and all pairs of plain and drafted runs are compared. Status 1
if any answer differs by a token, with where it parts and how close a call it was there.

As it stands it takes about a quarter of an hour with the bundled model on two cores; each further draft type
or length takes about half of that again. --workloads and --cases make it shorter.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench decode` takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    names = max(map(len, WORKLOADS))
    parser.epilog = "workloads:\n" + "\n".join(
        f"  {one.name:{names}}  {one.summary}"
        + (f"; {' and '.join(map(str, one.prompt_tokens))} tokens" if one.prompt_tokens else "")
        for one in WORKLOADS.values()
    )
    add = parser.add_argument
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled one.")
    draft_model.add_arguments(parser, "For the draft type draft-model; auto then uses it as well.")
    add("--workloads", type=_names, metavar="A,B",
        help="Default: all that are generated, but for those in Polish; with --prompts none.")  # fmt: skip
    add("--prompts", type=argument_types.input_file, metavar="FILE",
        help='Your own chats: JSON lines of chat requests, {"messages": [...]}, as `reprise serve --record` '
        "writes them.")  # fmt: skip
    add("--draft-types", type=_names, default=("auto",), metavar="X,Y",
        help=f"Of {', '.join(DRAFT_TYPES)}. Default: auto.")  # fmt: skip
    add("--num-draft-tokens", type=argument_types.levels, default=(31,), metavar="K,L",
        help="Most tokens of a draft; each with every draft type. Default: 31.")  # fmt: skip
    add("--prompt-tokens", type=argument_types.levels, metavar="N,M",
        help="About how long prompts are, where a workload lets one choose. Default: its own.")  # fmt: skip
    add("--max-tokens", type=argument_types.count, default=256, metavar="N",
        help="Of each answer. Default: 256.")  # fmt: skip
    add("--cases", type=argument_types.count, metavar="N",
        help="Chats (times streams) of each workload and length. Default: 1; all of --prompts.")  # fmt: skip
    add("--repeats", type=argument_types.count, default=3, metavar="N",
        help="Measured runs of each chat. Default: 3.")  # fmt: skip
    add("--streams", type=argument_types.count, default=1, metavar="N",
        help="Chats decoded together. Default: 1.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Makes the chats and samples. Default: 1.")
    add("--columns", type=_names, metavar="A,B",
        help="Columns of the table, by their names in JSON, or all.")  # fmt: skip
    outputs.add_arguments(parser, "Write the rows.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write, and return the exit status."""
    try:
        configurations = _configurations(arguments)
        workloads, columns = _workloads(arguments), _columns(arguments.columns)
        own = _own_chats(arguments)
    except (OSError, ValueError) as fault:
        return _refuse(fault)
    console = outputs.make_console(_WIDTH)
    with EnergyMeter() as meter, LocalEngine(_settings(arguments)) as local:
        runner = Runner(local, arguments.max_tokens, arguments.seed, meter)
        samples = Samples(local)
        try:
            groups = _groups(local, workloads, own, arguments)
        except ValueError as fault:
            return _refuse(fault)
        # Before the runs: the load is that of others, and the costs are those that were measured in peace.
        typed = document.typed(arguments)
        record = document.new_document(typed, local.engine.info, local.engine.costs, decode={})
        trials = _measure(runner, groups, configurations, arguments.repeats, samples)
    if not trials:
        return _refuse(ValueError("every chat is too long for the context of this model"))
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
    print_rows(console, rows, columns, f"Decoding of {record['model']['name']} with drafts, against without")
    for (workload, turn), chats in runner.skipped.items():
        told = f"! {workload}, turn {turn}: {len(chats)} left out, too long for the model's context"
        console.print(told, style="yellow", highlight=False, markup=False)
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
    weight = sum(g.weight * num_rounds(g, repeats) * num_ways(g, configurations) for g in groups)
    trials = []
    with Work(Console(stderr=True), weight) as work:
        for group in groups:
            length = f", {group.prompt_tokens} tokens" if group.prompt_tokens else ""
            work.begin(f"{group.workload}{length}")
            found = measure(runner, group, configurations, repeats, work.advance)
            samples.add(group.chats[0], found)
            trials += found
    return trials


def _groups(
    local: LocalEngine, workloads: Sequence[str], own: Sequence[Chat], arguments: argparse.Namespace
) -> list[Group]:
    """What is asked. Raises ValueError if a prompt cannot be made."""
    count = (arguments.cases or 1) * arguments.streams
    chats = [
        make_chats(name, count, arguments.seed, local.count_tokens, length)
        for name in workloads
        for length in lengths_of(name, arguments.prompt_tokens)
    ]
    if own:
        chats.append(list(own))
    return make_groups(local, chats, arguments.streams, arguments.max_tokens)


def _configurations(arguments: argparse.Namespace) -> list[Configuration]:
    """Every draft type with every length. Raises ValueError."""
    _check("--draft-types", arguments.draft_types, DRAFT_TYPES)
    if "draft-model" in arguments.draft_types and not arguments.draft_model:
        raise ValueError("--draft-types: draft-model needs a model: name one with --draft-model")
    if max(arguments.num_draft_tokens) > _LONGEST:
        raise ValueError(f"--num-draft-tokens: {max(arguments.num_draft_tokens)} is above {_LONGEST}")
    return [Configuration(*pair) for pair in product(arguments.draft_types, arguments.num_draft_tokens)]


def _workloads(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The generated workloads to run. Raises ValueError."""
    if arguments.workloads is None:
        return () if arguments.prompts else ENGLISH
    _check("--workloads", arguments.workloads, tuple(WORKLOADS))
    return tuple(arguments.workloads)


def _columns(asked: Sequence[str] | None) -> Sequence[str] | None:
    if asked is None:
        return None
    if "all" in asked:
        return tuple(COLUMNS)
    _check("--columns", asked, (*COLUMNS, "all"))
    return asked


def _own_chats(arguments: argparse.Namespace) -> list[Chat]:
    """The user's own chats. Raises OSError, ValueError."""
    if not arguments.prompts:
        return []
    chats = read_prompts(arguments.prompts)
    kept = chats[: arguments.cases * arguments.streams] if arguments.cases else chats
    if len(kept) < arguments.streams:
        raise ValueError(
            f"{arguments.prompts} has {len(kept)} chats; {arguments.streams} streams need as many"
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


def _check(flag: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{flag}: {name} is none of {', '.join(known)}")


def _refuse(fault: Exception) -> int:
    print(f"reprise bench decode: {fault}", file=sys.stderr)
    return 2
