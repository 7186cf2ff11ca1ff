"""`reprise bench replay`: replay known answers by any drafting rule, without a model, at given step costs.

Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. Without --pairs and --workloads the pairs are generated from a seed: edits of the Python files
installed here, documents, and traps.
"""

import argparse
import sysconfig
from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path

from bench import document, options, outputs
from bench.cost_curves import Curve, built_in, describe, find_curve
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.replay.calibration import print_calibration
from bench.replay.edits import KINDS, edit_cases, prose_cases, trap_cases
from bench.replay.pairs import TokenPair, read_pairs, tokenized
from bench.replay.policies import Outcome, Setup
from bench.replay.rules import COMPARED, RULES, Rule
from bench.tables import Column, print_rows
from bench.workloads import WORKLOADS, lengths_of, make_chats
from bench.workloads.chats import render, render_turn
from config.settings import BUNDLED_MODEL, Settings
from engine.text.tokenizer import Tokenizer

NUM_DOCUMENTS, NUM_TRAPS = 40, 4

COLUMNS = [
    Column("workload", "workload"), Column("pairs", "pairs", "0"), Column("drafter", "drafter"),
    Column("curve", "cost curve"), Column("tokens_per_forward", "TPF", "2"), Column("speedup", "speed", "2"),
    Column("slowest", "least", "2"), Column("acceptance", "accepted", "%"), Column("coverage", "copied", "%"),
]  # fmt: skip
NOTE = """\
TPF: tokens per forward pass. speed: speedup over plain decoding; least: the lowest speedup of a pair.
accepted: share of drafted tokens. copied: share of the answer that came from drafts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise bench replay` to the parser."""
    width = max(map(len, RULES))
    parser.epilog = "rules:\n" + "\n".join(f"  {name:{width}}  {rule.title}" for name, rule in RULES.items())
    options.add(parser, prompt_tokens=None, seed=1, **options.OUTPUTS)
    parser.add_argument("--pairs", action="append", type=options.input_file, metavar="FILE", default=[],
                        help="Pairs as JSON lines; may be repeated.")  # fmt: skip
    parser.add_argument(
        "--cost-curve", action="append", metavar="FILE",
        help="Step costs: a curve, a result document that has one, or the name of a built-in curve: "
        f"{', '.join(built_in())}. May be repeated. Default: all built-in curves.",
    )  # fmt: skip
    parser.add_argument("--kind", choices=KINDS, help="Replay only generated edits of this kind.")
    options.declare(
        parser,
        Flag("--workloads", options.names, "A,B", None, "Replay the right answers of these workloads' chats."),
        Flag("--tokenizer", options.model_folder, "DIR", BUNDLED_MODEL, "Default: the bundled model's."),
        Flag("--drafters", options.names, "RULES", COMPARED, "Rules to replay."),
        Flag("--calibrate", None, None, None, "Print how often each bucket of the suffix drafter is right."),
        Flag("--num-draft-tokens", options.count, "N", 31, "Maximum draft length of the server's rules."),
        Flag("--chats", options.count, "N", 20, "Chats per workload and prompt length."),
        Flag("--edits", options.count, "N", 60, "Generated edits."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Replay, print, and return the exit status."""
    options.check_names("--drafters", arguments.drafters, tuple(RULES))
    options.check_names("--workloads", arguments.workloads or (), tuple(WORKLOADS))
    options.check_lengths([arguments.num_draft_tokens])
    curves = [find_curve(name) for name in arguments.cost_curve or built_in()]
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    console, tokenizer = outputs.make_console(120), load_tokenizer(arguments.tokenizer)
    sources = dict(collect(arguments, tokenizer))
    for name, found in sources.items():
        console.print(f"{name}: {len(found)}", highlight=False)
    pairs = [*chain(*sources.values())]
    if not any(pair.is_measured for pair in pairs):
        raise ArgumentsError("there is no pair to replay")
    settings = Settings(num_draft_tokens=arguments.num_draft_tokens)
    setups = [Setup(settings, curve, line_ends=tokenizer.line_ends) for curve in curves]
    if arguments.calibrate:
        print_calibration(console, pairs, setups[0])
        return 0
    rows = replay(pairs, [RULES[name] for name in arguments.drafters], setups)
    notes = [f"{name}: {RULES[name].title}" for name in arguments.drafters]
    notes += [
        f"{curve.name}: {curve.kind}; {curve.machine}; {curve.source}; costs above width {curve.widest} are a guess"
        for curve in curves
    ]
    print_rows(console, rows, COLUMNS, notes=[*notes, NOTE])
    section = {
        "rows": rows, "curves": describe(curves),
        "sources": [{"name": name, "num_pairs": len(found)} for name, found in sources.items()],
    }  # fmt: skip
    outputs.finish(console, arguments, document.new_document(arguments, replay=section), rows)
    return 0


def collect(arguments: argparse.Namespace, tokenizer: Tokenizer) -> Iterator[tuple[str, list[TokenPair]]]:
    """Yield the name and the pairs of each source that the command line asks for. Raises PairsError."""
    encode, seed, kind = tokenizer.encode_answer, arguments.seed, arguments.kind
    for path in arguments.pairs:
        yield f"pairs of {path}", tokenized(read_pairs(path), encode)
    for name in arguments.workloads or ():
        yield f"turns of {name}", _of_workload(name, arguments, tokenizer)
    if arguments.pairs or arguments.workloads:
        return
    root = Path(sysconfig.get_path("purelib"))
    edits = edit_cases(root, encode, arguments.edits, seed)
    yield "generated edits", [pair for pair in edits if kind in (None, pair.id)]
    if kind is None:
        yield "documents", prose_cases(root, encode, NUM_DOCUMENTS, seed)
        yield "traps", trap_cases(NUM_TRAPS, seed)


def _of_workload(name: str, arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[TokenPair]:
    """Return the reference answers of a workload's turns, each after the chat so far."""

    def num_tokens(text: str) -> int:
        return len(render(tokenizer, text))

    chats = [
        chat
        for length in lengths_of(name, arguments.prompt_tokens)
        for chat in make_chats(name, arguments.chats, arguments.seed, num_tokens, length)
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


def replay(pairs: Sequence[TokenPair], rules: Sequence[Rule], setups: Sequence[Setup]) -> list[Row]:
    """Return a row for each workload, rule and curve, and for all workloads together if there are several."""
    rows: list[Row] = []
    with outputs.Work() as work:
        advance = work.stage(f"replaying {len(pairs)} answers", len(rules) * len(setups))
        for rule, setup in product(rules, setups):
            plays: dict[str, list[tuple[TokenPair, Outcome]]] = {}
            for pair, outcome in rule.player(setup).play_all(pairs, is_cold=not rule.is_warm):
                plays.setdefault(pair.workload, []).append((pair, outcome))
            if len(plays) > 1:
                plays["all"] = [*chain(*plays.values())]
            rows += [_row(rule, setup.curve, workload, found) for workload, found in plays.items()]
            advance()
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    return sorted(rows, key=lambda row: workloads.index(row["workload"]))


def _row(rule: Rule, curve: Curve, workload: str, plays: Sequence[tuple[TokenPair, Outcome]]) -> Row:
    together = Outcome()
    for _, outcome in plays:
        together.add(outcome)
    figures = together.figures()
    return {
        "drafter": rule.name, "rule": rule.title, "used_by": rule.used_by, "curve": curve.name,
        "is_hindsight": rule.is_hindsight, "memory": "warm" if rule.is_warm else "cold", "workload": workload,
        "pairs": len(plays), "prompt_tokens": sum(len(pair.prompt) for pair, _ in plays),
        "slowest": min(outcome.num_tokens / outcome.cost for _, outcome in plays),
        "coverage": figures.pop("drafted_share"), **figures,
    }  # fmt: skip
