"""`reprise bench replay`: replay known answers by any drafting rule, without a model, at given step costs.

Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. Without --pairs and --workloads the pairs are generated from a seed: edits of the Python files
installed here, documents, and traps.
"""

import argparse
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench import document, options, outputs
from bench.cost_curves import Curve, built_in, describe, find_curve
from bench.document import num_cores
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.replay.edits import KINDS, edit_cases, prose_cases, trap_cases
from bench.replay.job import (
    Job,
    calibrate,
    count_text,
    print_calibration,
    print_report,
    rows_of,
    run_job,
)
from bench.replay.pairs import TokenPair, read_pairs, tokenized
from bench.replay.policies import Setup
from bench.replay.rules import COMPARED, RULES
from bench.workloads import WORKLOADS, lengths_of, make_chats
from bench.workloads.chats import render, render_turn
from config.settings import BUNDLED_MODEL, Settings
from engine.text.tokenizer import Tokenizer

_WIDTH = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise bench replay` to the parser."""
    names = max(map(len, RULES))
    parser.epilog = "rules:\n" + "\n".join(f"  {rule.name:{names}}  {rule.title}" for rule in RULES.values())
    options.add(parser, prompt_tokens=None, seed=1, **options.OUTPUTS)
    parser.add_argument("--pairs", action="append", type=Path, metavar="FILE",
                        help="Pairs as JSON lines; may be repeated.")  # fmt: skip
    parser.add_argument(
        "--cost-curve", action="append", metavar="FILE",
        help="Step costs: a curve, a result document that has one, or the name of a built-in curve: "
        f"{', '.join(built_in())}. May be repeated. Default: all built-in curves.",
    )  # fmt: skip
    parser.add_argument("--kind", choices=KINDS, default="", help="Replay only generated edits of this kind.")
    number, whole = options.count, options.count_or_none
    options.declare(
        parser,
        Flag(
            "--workloads", options.names, "A,B", None, "Replay the right answers of these workloads' chats."
        ),
        Flag("--tokenizer", Path, "FOLDER", BUNDLED_MODEL, "Tokenizer. Default: the bundled model's."),
        Flag("--drafters", options.names, "RULES", COMPARED, "Rules to replay."),
        Flag("--calibrate", None, None, None, "Print how often each bucket of the suffix drafter is right."),
        Flag("--num-draft-tokens", number, "N", 31, "Maximum draft length of the server's rules."),
        Flag("--chats", number, "N", 20, "Chats per workload and prompt length."),
        Flag("--edits", whole, "N", 60, "Generated edits."),
        Flag("--prose", whole, "N", 40, "Documents whose second half is replayed after the first."),
        Flag("--traps", whole, "N", 4, "Prompts whose matches mislead drafters."),
        Flag("--processes", number, "N", num_cores(), "Maximum number of processes."),
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay, print, and return the exit status."""
    console = outputs.make_console(_WIDTH)
    options.check_names("--drafters", arguments.drafters, tuple(RULES))
    options.check_names("--workloads", arguments.workloads or (), tuple(WORKLOADS))
    options.check_lengths([arguments.num_draft_tokens])
    curves = _curves(arguments.cost_curve or built_in())
    if not (arguments.tokenizer / "config.json").is_file():
        raise ArgumentsError(f"--tokenizer: {arguments.tokenizer} is not a model folder")
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.tokenizer)
    pairs: list[TokenPair] = []
    sources: list[Row] = []
    for name, found, num_empty in collect(arguments, tokenizer):
        pairs += found
        sources.append({"name": name, "num_pairs": len(found), "num_empty": num_empty})
        left_out = f", {num_empty} left out for having no answer" if num_empty else ""
        console.print(f"{name}: {count_text(len(found), 'pair')}{left_out}", highlight=False)
    if not pairs:
        raise ArgumentsError("there is no pair to replay")
    setup = Setup(Settings(num_draft_tokens=arguments.num_draft_tokens), line_ends=tokenizer.line_ends)
    if arguments.calibrate:
        for name in dict.fromkeys(pair.workload for pair in pairs):
            of_workload = [pair for pair in pairs if pair.workload == name]
            print_calibration(console, name or "pairs", calibrate(of_workload, setup, curves[0]))
        return 0
    rules = tuple(arguments.drafters)
    with outputs.Work(1.0) as work:
        work.begin(f"replaying {count_text(len(pairs), 'pair')} by {count_text(len(rules), 'rule')}")
        results = run_job(Job(pairs, rules, curves, setup), arguments.processes, work.advance)
    if not results:
        raise ArgumentsError("none of the pairs is marked to be measured")
    rows = rows_of(results, rules, curves)
    print_report(console, rows, curves)
    section = {"rows": rows, "curves": describe(curves), "sources": sources}
    outputs.finish(console, arguments, document.new_document(arguments, replay=section), rows)
    return 0


def _curves(names: Iterable[str]) -> tuple[Curve, ...]:
    """Return the curves of these names; of curves that are called the same, later ones get a number."""
    curves: list[Curve] = []
    for name in names:
        curve = find_curve(name)
        same = sum(other.name.split(" #")[0] == curve.name for other in curves)
        curves.append(replace(curve, name=f"{curve.name} #{same + 1}") if same else curve)
    return tuple(curves)


def collect(
    arguments: argparse.Namespace, tokenizer: Tokenizer
) -> Iterator[tuple[str, Sequence[TokenPair], int]]:
    """Yield the name and the pairs of each source that the command line asks for.

    The number is that of pairs left out because their prompt or answer has no token. Raises PairsError.
    """
    encode, seed = tokenizer.encode_answer, arguments.seed
    for path in arguments.pairs or ():
        read = read_pairs(path)
        found = tokenized(read, encode)
        yield str(path), found, len(read) - len(found)
    for name in arguments.workloads or ():
        yield f"workload {name}", _of_workload(name, arguments, tokenizer), 0
    if arguments.pairs or arguments.workloads:
        return
    roots = [Path(sysconfig.get_path("purelib"))]
    if arguments.edits:
        edits = edit_cases(roots, encode, arguments.edits, seed)
        yield "generated edits", [pair for pair in edits if arguments.kind in ("", pair.id)], 0
    if arguments.prose and not arguments.kind:
        yield "documents", prose_cases(roots, encode, arguments.prose, seed), 0
    if arguments.traps and not arguments.kind:
        yield "traps", trap_cases(arguments.traps, seed), 0


def _of_workload(name: str, arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[TokenPair]:
    """Return the reference answers of a workload's turns, each after the chat so far."""
    chats = [
        chat
        for length in lengths_of(name, arguments.prompt_tokens)
        for chat in make_chats(
            name, arguments.chats, arguments.seed, lambda text: len(render(tokenizer, text)), length
        )
    ]
    return [
        TokenPair(
            render_turn(tokenizer, turn), tuple(tokenizer.encode_answer(turn.reference)), name,
            f"{name} {number}", at, is_measured=turn.is_measured,
        )
        for number, chat in enumerate(chats, 1)
        for at, turn in enumerate(chat.turns, 1)
        if turn.reference
    ]  # fmt: skip
