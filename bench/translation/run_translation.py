"""`reprise bench translation`: what drafts of models with other vocabularies bring."""

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

SUMMARY = "What drafts of a model with another vocabulary bring, by the way they are translated."
BUNDLED_DRAFTS = tuple(BUNDLED_MODEL / name for name in ("draft_polish", "draft"))
DEFAULT_WORKLOADS = "edits_polish,passages_polish,records_polish,edits"
_WIDTH = 120
_LONGEST = 255

_DESCRIPTION = """\
Draft models x strategies of translation x workloads x lengths of drafts: how many drafted tokens are
accepted, and how fast that is against plain decoding of the same chats in the same run, in turns. Drafts of
a chosen length come from the draft model alone, and every one of them is verified; beside them a row in
which the engine chooses lengths, and leaves out drafts that do not pay, as --draft-type draft-model does in
a server. All token ids are compared. Status 1 if any differ.

As it stands it takes about four minutes with the bundled models on two cores.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench translation` takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled one.")
    add("--draft-model", type=argument_types.model_folder, action="append", metavar="DIR",
        help="May be given several times. Default: the bundled ones, "
        f"{' and '.join(folder.name for folder in BUNDLED_DRAFTS)}.")  # fmt: skip
    add("--strategies", metavar="A,B",
        help=f"Of {', '.join(STRATEGIES)}. Default: {','.join(ACROSS)} for a draft model with another "
        f"vocabulary, {','.join(WITHIN)} for one with the same.")  # fmt: skip
    add("--translation-prefix-tokens", type=argument_types.count, default=5, metavar="P",
        help="How many committed tokens context has in front of what it encodes. Default: 5.")  # fmt: skip
    add("--num-draft-tokens", type=argument_types.levels, default=(2, 4, 6), metavar="K,L",
        help="Lengths of drafts. Default: 2,4,6.")  # fmt: skip
    add("--workloads", default=DEFAULT_WORKLOADS, metavar="A,B",
        help=f"Of {', '.join(WORKLOADS)}. Default: {DEFAULT_WORKLOADS}.")  # fmt: skip
    add("--prompts", type=argument_types.input_file, metavar="FILE",
        help='Your own chats instead: JSON lines of chat requests, {"messages": [...]}.')  # fmt: skip
    add("--cases", type=argument_types.count, metavar="N",
        help=f"Chats of each workload. Default: {CASES}; all of --prompts.")  # fmt: skip
    add("--repeats", type=argument_types.count, default=1, metavar="N",
        help="Measured runs of each chat, of which the best counts. Default: 1.")  # fmt: skip
    add("--max-tokens", type=argument_types.count, default=64, metavar="N",
        help="Of each answer. Default: 64.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Makes the chats and samples. Default: 1.")
    outputs.add_arguments(parser, "Write the rows.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write, and return the exit status."""
    try:
        pairs = _pairs(arguments)
        arguments.workloads = tuple(arguments.workloads.split(","))
        chats = own_chats(arguments.prompts, arguments.workloads)
    except (OSError, ValueError) as fault:
        return _refuse(str(fault), 2)
    try:
        trials, refused = _measure(arguments, pairs, chats)
    except (ValueError, RuntimeError) as fault:
        # The latter: an answer failed, and says why.
        return _refuse(str(fault), 2 if isinstance(fault, ValueError) else 1)
    if not trials.rows:
        reasons = dict.fromkeys(refused.values()) or ["every chat is too long for the context of this model"]
        return _refuse("; ".join(reasons), 2)
    _tell(arguments, trials, refused)
    return int(any(row["parity"] == "FAIL" for row in trials.rows))


def _measure(
    arguments: argparse.Namespace, pairs: list[Pair], chats: list[Chat] | None
) -> tuple[Trials, dict[Pair, str]]:
    """All that could be measured, and why the other pairs could not."""
    refused: dict[Pair, str] = {}
    told = Console(stderr=True)
    with EnergyMeter() as meter, Trials(arguments, chats, len(pairs), meter, told) as trials:
        for pair in pairs:
            try:
                trials.measure(pair)
            except (SettingsError, ModelError, TemplateError, ArgumentsError) as fault:
                refused[pair] = str(fault)
    return trials, refused


def _tell(arguments: argparse.Namespace, trials: Trials, refused: dict[Pair, str]) -> None:
    """Print and write."""
    record: document.Document = trials.record
    sentences = findings(trials.rows)
    left_out = [{"draft_model": p.name, "strategy": p.strategy, "reason": why} for p, why in refused.items()]
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
        told = f"! {one['draft_model']}, {one['strategy']}: left out: {one['reason']}"
        console.print(told, style="yellow", highlight=False, markup=False)
    console.print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), highlight=False)
    console.print()
    for sentence in sentences:
        console.print(f"- {sentence}", highlight=False, markup=False)
    outputs.write(arguments, record, [flat(row) for row in trials.rows])


def _pairs(arguments: argparse.Namespace) -> list[Pair]:
    """What is to be measured. Raises OSError, ValueError."""
    known = {str(name): name for name in STRATEGIES}
    names = arguments.strategies.split(",") if arguments.strategies else []
    for name in names:
        if name not in known:
            raise ValueError(f"--strategies: {name or 'nothing'} is none of {', '.join(STRATEGIES)}")
    longest = max(arguments.num_draft_tokens)
    if longest > _LONGEST:
        raise ValueError(f"--num-draft-tokens: {longest} is above {_LONGEST}")
    folders = arguments.draft_model
    if not folders:
        folders = [folder for folder in BUNDLED_DRAFTS if (folder / "config.json").is_file()]
    return pairs_of(
        arguments.model or Path(BUNDLED_MODEL),
        list(dict.fromkeys(folders)),
        [known[name] for name in names] or None,
    )


def _refuse(reason: str, status: int) -> int:
    print(f"reprise bench translation: {reason}", file=sys.stderr)
    return status
