"""`reprise bench translation`: measure drafts of models with other vocabularies, by translation strategy."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import argument_types, document, outputs
from bench.decode.table import divergence_text, flat
from bench.energy import EnergyMeter
from bench.errors import ArgumentsError
from bench.translation.findings import findings
from bench.translation.pairs import ACROSS, STRATEGIES, WITHIN, Pair, pairs_of
from bench.translation.table import print_rows
from bench.translation.trials import CASES, Trials
from bench.workloads import VERSION, WORKLOADS, Chat, own_chats
from config.setting import SettingsError
from config.settings import BUNDLED_MODEL
from engine.model.loading import ModelError
from engine.model.tokenizer import TemplateError

SUMMARY = "Measure drafts of models with another vocabulary, by translation strategy."
BUNDLED_DRAFTS = tuple(BUNDLED_MODEL / name for name in ("draft_polish", "draft"))
DEFAULT_WORKLOADS = "edits_polish,passages_polish,records_polish,edits"
_WIDTH = 120
_MAX_DRAFT_TOKENS = 255

_DESCRIPTION = """\
For draft models x translation strategies x workloads x draft lengths, measure how many drafted tokens are
accepted, and the speedup against plain decoding of the same chats, alternating in the same run. Drafts of a
given length come from the draft model alone, and all of them are verified. An additional row has the lengths
that the engine chooses, leaving out drafts that do not pay, as --draft-type draft-model does on a server. All
token ids are compared. Exit status 1 if any differ.

With defaults this takes about four minutes for the bundled models on two cores.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench translation` to the parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled model.")
    add("--draft-model", type=argument_types.model_folder, action="append", metavar="DIR",
        help="May be repeated. Default: the bundled draft models, "
        f"{' and '.join(folder.name for folder in BUNDLED_DRAFTS)}.")  # fmt: skip
    add("--strategies", metavar="A,B",
        help=f"Any of {', '.join(STRATEGIES)}. Default: {','.join(ACROSS)} for a draft model with another "
        f"vocabulary, {','.join(WITHIN)} for one with the same.")  # fmt: skip
    add("--translation-prefix-tokens", type=argument_types.count, default=5, metavar="P",
        help="Committed tokens that the context strategy encodes with a draft. Default: 5.")  # fmt: skip
    add("--num-draft-tokens", type=argument_types.levels, default=(2, 4, 6), metavar="K,L",
        help="Draft lengths. Default: 2,4,6.")  # fmt: skip
    add("--workloads", default=DEFAULT_WORKLOADS, metavar="A,B",
        help=f"Any of {', '.join(WORKLOADS)}. Default: {DEFAULT_WORKLOADS}.")  # fmt: skip
    add("--prompts", type=argument_types.input_file, metavar="FILE",
        help='Your own chats instead: JSON lines of chat requests, {"messages": [...]}.')  # fmt: skip
    add("--cases", type=argument_types.count, metavar="N",
        help=f"Chats of each workload. Default: {CASES}; with --prompts all.")  # fmt: skip
    add("--repeats", type=argument_types.count, default=1, metavar="N",
        help="Measured runs of each chat, of which the best counts. Default: 1.")  # fmt: skip
    add("--max-tokens", type=argument_types.count, default=64, metavar="N",
        help="Maximum tokens of each answer. Default: 64.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Seed of chats and sampling. Default: 1.")
    outputs.add_arguments(parser, "Write the rows of the tables to FILE.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    try:
        pairs = _pairs(arguments)
        arguments.workloads = tuple(arguments.workloads.split(","))
        chats = own_chats(arguments.prompts, arguments.workloads)
    except (OSError, ValueError) as fault:
        return _report_fault(str(fault), 2)
    try:
        trials, failed = _measure(arguments, pairs, chats)
    except (ValueError, RuntimeError) as fault:
        # RuntimeError: a request failed.
        return _report_fault(str(fault), 2 if isinstance(fault, ValueError) else 1)
    if not trials.rows:
        reasons = dict.fromkeys(failed.values()) or ["every chat is too long for this model's context"]
        return _report_fault("; ".join(reasons), 2)
    _report(arguments, trials, failed)
    return int(any(row["parity"] == "FAIL" for row in trials.rows))


def _measure(
    arguments: argparse.Namespace, pairs: list[Pair], chats: list[Chat] | None
) -> tuple[Trials, dict[Pair, str]]:
    """Return all trials, and the reasons why pairs could not be measured."""
    failed: dict[Pair, str] = {}
    console = Console(stderr=True)
    with EnergyMeter() as meter, Trials(arguments, chats, len(pairs), meter, console) as trials:
        for pair in pairs:
            try:
                trials.measure(pair)
            except (SettingsError, ModelError, TemplateError, ArgumentsError) as fault:
                failed[pair] = str(fault)
    return trials, failed


def _report(arguments: argparse.Namespace, trials: Trials, failed: dict[Pair, str]) -> None:
    """Print the results and write the files."""
    record: document.Document = trials.record
    sentences = findings(trials.rows)
    left_out = [{"draft_model": p.name, "strategy": p.strategy, "reason": why} for p, why in failed.items()]
    section: dict[str, Any] = {
        "workloads_version": VERSION,
        "repeats": arguments.repeats,
        "seed": arguments.seed,
        "max_tokens": arguments.max_tokens,
        "translation_prefix_tokens": arguments.translation_prefix_tokens,
        "rows": trials.rows,
        "refused": left_out,
        "findings": sentences,
    }
    record["translation"] = section
    console = outputs.make_console(_WIDTH)
    print_rows(console, trials.rows, record["model"]["name"])
    for row in trials.rows:
        if row["first_divergence"]:
            which = f"{row['draft_model']}, {row['strategy']}: {divergence_text(row)}"
            console.print(which, style="red", highlight=False, markup=False)
    for one in left_out:
        note = f"! {one['draft_model']}, {one['strategy']}: skipped: {one['reason']}"
        console.print(note, style="yellow", highlight=False, markup=False)
    console.print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), highlight=False)
    console.print()
    for sentence in sentences:
        console.print(f"- {sentence}", highlight=False, markup=False)
    outputs.write(arguments, record, [flat(row) for row in trials.rows])


def _pairs(arguments: argparse.Namespace) -> list[Pair]:
    """Return the pairs to measure. Raises OSError, ValueError."""
    known = {str(name): name for name in STRATEGIES}
    names = arguments.strategies.split(",") if arguments.strategies else []
    for name in names:
        if name not in known:
            raise ValueError(f"--strategies: {name or 'empty'} is not one of {', '.join(STRATEGIES)}")
    longest = max(arguments.num_draft_tokens)
    if longest > _MAX_DRAFT_TOKENS:
        raise ValueError(f"--num-draft-tokens: {longest} is above {_MAX_DRAFT_TOKENS}")
    folders = arguments.draft_model
    if not folders:
        folders = [folder for folder in BUNDLED_DRAFTS if (folder / "config.json").is_file()]
    return pairs_of(
        arguments.model or Path(BUNDLED_MODEL),
        list(dict.fromkeys(folders)),
        [known[name] for name in names] or None,
    )


def _report_fault(reason: str, status: int) -> int:
    print(f"reprise bench translation: {reason}", file=sys.stderr)
    return status
