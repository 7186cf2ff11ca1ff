"""`reprise bench replay`: replay known answers by any drafting rule, without a model, at given step costs.

Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. Without --pairs the pairs are generated from a seed: edits of the Python files installed here,
documents, and traps. `reprise serve --record`, `reprise bench commits` and `reprise bench workloads --write`
write files of pairs.
"""

import argparse
import sysconfig
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path

from bench import document, options, outputs
from bench.cost_curves import Curve, built_in, describe, find_curve
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.replay.calibration import calibrate
from bench.replay.edits import KINDS, edit_cases, prose_cases, trap_cases
from bench.replay.pairs import Encode, TokenPair, read_pairs, tokenized
from bench.replay.policies import Outcome, Setup, in_hindsight
from bench.replay.rules import COMPARED, RULES, Rule
from bench.tables import Column, print_rows
from config.settings import BUNDLED_MODEL, Settings

COLUMNS = [
    Column("workload", "workload"), Column("pairs", "pairs", "0"), Column("drafter", "drafter"),
    Column("curve", "cost curve"), Column("tokens_per_forward", "TPF", "2"), Column("speedup", "speed", "2"),
    Column("slowest", "least", "2"), Column("acceptance", "accepted", "%"), Column("coverage", "copied", "%"),
]  # fmt: skip
NOTE = """\
TPF: tokens per forward pass. speed: speedup over plain decoding; least: the lowest speedup of a pair.
accepted: share of drafted tokens. copied: share of the answer that came from drafts.
Costs of drafts that are longer than a curve are a guess."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise bench replay` to the parser."""
    width = max(map(len, RULES))
    parser.epilog = "rules:\n" + "\n".join(f"  {name:{width}}  {rule.title}" for name, rule in RULES.items())
    options.add(parser, seed=1, **options.OUTPUTS)
    parser.add_argument("--pairs", action="append", type=Path, default=[], metavar="FILE",
                        help="Pairs as JSON lines; may be repeated.")  # fmt: skip
    parser.add_argument(
        "--cost-curve", action="append", metavar="FILE",
        help="Step costs: a curve, a result document that has one, or the name of a built-in curve: "
        f"{', '.join(built_in())}. May be repeated. Default: all built-in curves.",
    )  # fmt: skip
    parser.add_argument("--kind", choices=KINDS, help="Replay only generated edits of this kind.")
    options.declare(
        parser,
        Flag("--tokenizer", options.model_folder, "DIR", BUNDLED_MODEL, "Default: the bundled model's."),
        Flag("--drafters", options.names, "RULES", COMPARED, "Rules to replay."),
        Flag("--calibrate", None, None, None, "Print how often each bucket of the suffix drafter is right."),
        Flag("--edits", options.count, "N", 60, "Generated edits."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Replay, print, and return the exit status."""
    options.check_names("--drafters", arguments.drafters, tuple(RULES))
    curves = [find_curve(name) for name in arguments.cost_curve or built_in()]
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    console, tokenizer = outputs.make_console(120), load_tokenizer(arguments.tokenizer)
    pairs = collect(arguments, tokenizer.encode_answer)
    if not pairs:
        raise ArgumentsError("there is no pair to replay")
    setups = [Setup(Settings(), curve, line_ends=tokenizer.line_ends) for curve in curves]
    if arguments.calibrate:
        calibrate(console, pairs, setups[0])
        return 0
    rows = replay(pairs, [RULES[name] for name in arguments.drafters], setups)
    titles = [f"{name}: {RULES[name].title}" for name in arguments.drafters]
    machines = [f"{one.name}: {one.kind}; {one.machine}; {one.source}" for one in curves]
    print_rows(console, rows, COLUMNS, notes=[*titles, *machines, NOTE])
    section = {"rows": rows, "curves": describe(curves)}
    outputs.finish(console, arguments, document.new_document(arguments, replay=section), rows)
    return 0


def collect(arguments: argparse.Namespace, encode: Encode) -> list[TokenPair]:
    """Return the pairs that the command line asks for. Raises ArgumentsError."""
    if arguments.pairs:
        return [pair for path in arguments.pairs for pair in tokenized(read_pairs(path), encode)]
    installed, seed = Path(sysconfig.get_path("purelib")), arguments.seed
    edits = edit_cases(installed, encode, arguments.edits, seed)
    if arguments.kind:
        return [pair for pair in edits if pair.id == arguments.kind]
    return [*edits, *prose_cases(installed, encode, 40, seed), *trap_cases(4, seed)]


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
        "drafter": rule.name, "rule": rule.title, "curve": curve.name, "workload": workload,
        "is_hindsight": rule.choose is in_hindsight, "memory": "warm" if rule.is_warm else "cold",
        "pairs": len(plays), "prompt_tokens": sum(len(pair.prompt) for pair, _ in plays),
        "slowest": min(outcome.num_tokens / outcome.cost for _, outcome in plays),
        "coverage": figures.pop("drafted_share"), **figures,
    }  # fmt: skip
