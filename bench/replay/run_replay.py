"""`reprise bench replay`: replay known answers by any drafting rule, without a model, at given step costs.

Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. Without --pairs the pairs are generated from a seed: edits of the Python files installed here,
documents, and traps. `reprise serve --record`, `reprise bench commits` and `reprise bench workloads --write`
write files of pairs. With --history they are an agent's chats about the changes of a git history, and with
--session what an agent did.
"""

import argparse
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path

from reprise.bench import document, options, outputs
from reprise.bench.cost_curves import built_in, find_curve
from reprise.bench.errors import ArgumentsError
from reprise.bench.experiment import Row
from reprise.bench.options import Flag
from reprise.bench.replay.file_edits import KINDS, edit_cases, prose_cases, trap_cases
from reprise.bench.replay.pairs import TokenPair, read_history, token_pairs
from reprise.bench.replay.policies import COMPARED, RULES, Rule, Setup, play_all, summed
from reprise.bench.replay.sessions import read_session
from reprise.bench.tables import Column
from reprise.bench.workloads import read_prompts
from reprise.bench.workloads.agents import FORMS, NUMBERS, agent_chats
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.text.tokenizer import Tokenizer

COLUMNS = [
    Column("workload", "workload"), Column("pairs", "pairs", "0"), Column("drafter", "drafter"),
    Column("curve", "cost curve"), Column("tokens_per_forward", "TPF", "2"), Column("speedup", "speed", "2"),
    Column("slowest", "least", "2"), Column("acceptance", "accepted", "%"), Column("coverage", "copied", "%"),
]  # fmt: skip
NOTE = """\
TPF: tokens per forward pass. speed: speedup over plain decoding; least: the lowest speedup of a pair.
accepted: share of drafted tokens. copied: share of the answer that came from drafts.
Costs of drafts that are longer than a curve are a guess."""
EPILOG = "rules:\n" + "\n".join(f"  {name:18} {rule.title}" for name, rule in RULES.items())
FLAGS = (
    *options.shared(seed=1, **options.OUTPUTS),
    Flag("--pairs", Path, "FILE", [],
         'JSON lines with a "prompt" or "messages", and the "output"; may be repeated.', is_repeated=True),
    Flag("--session", Path, "FILE", [],
         "An agent's session, from ~/.claude/projects or `reprise serve --record`; may be repeated.",
         is_repeated=True),
    Flag("--history", str, "REPO", [], "Make an agent's chats from a git history; may be repeated.",
         is_repeated=True),
    Flag("--changes", options.count, "N", 40, "Newest changes of files of a history."),
    Flag("--forms", options.names, "A,B", FORMS, "How an agent writes the changes of a history."),
    Flag("--numbers", options.names, "A,B", ("plain", "arrow"),
         f"How its tool shows the lines of a file: any of {', '.join(NUMBERS)}."),
    Flag("--cost-curve", str, "CURVE", [],
         "Step costs: those of a result document, or a built-in curve; may be repeated. "
         f"Default: {', '.join(built_in())}.", is_repeated=True),
    Flag("--kind", str, "KIND", None, f"Replay only generated edits of this kind: {', '.join(KINDS)}."),
    Flag("--tokenizer", options.model, "MODEL", BUNDLED_MODEL, "Default: the bundled model's."),
    Flag("--chat-template", options.input_file, "FILE", None, "Instead of the model's own."),
    Flag("--drafters", options.names, "RULES", COMPARED, "Rules to replay."),
    Flag("--edits", options.count, "N", 60, "Generated edits."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Replay answers, print the figures, write the files, and return the exit status."""
    options.check_names("--drafters", arguments.drafters, tuple(RULES))
    options.check_names("--kind", [arguments.kind] if arguments.kind else [], KINDS)
    options.check_names("--forms", arguments.forms, FORMS)
    options.check_names("--numbers", arguments.numbers, tuple(NUMBERS))
    curves = [find_curve(name) for name in arguments.cost_curve or built_in()]
    template = arguments.chat_template and arguments.chat_template.read_text(encoding="utf-8")
    tokenizer = load_tokenizer(arguments.tokenizer, template)
    rules = [RULES[name] for name in arguments.drafters]
    pairs = _collect(arguments, tokenizer)
    if not pairs:
        raise ArgumentsError("there is no pair to replay")
    rows = replay(pairs, rules, [Setup(Settings(), one, tokenizer.line_ends) for one in curves])
    record = document.new_document(arguments, replay={"rows": rows, "curves": list(map(asdict, curves))})
    titles = [f"{rule.name}: {rule.title}" for rule in rules]
    machines = [f"{one.name}: {one.kind}; {one.machine}; {one.source}" for one in curves]
    outputs.report(arguments, record, rows, outputs.Table(COLUMNS, notes=[*titles, *machines, NOTE]))
    return 0


def _collect(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[TokenPair]:
    """Return the pairs to replay, as the command line asks. Raises OSError, ValueError."""
    if arguments.pairs or arguments.session or arguments.history:
        files = [read_prompts(path, for_replay=True) for path in arguments.pairs]
        files += map(read_session, arguments.session)
        histories = (read_history(repository, arguments.changes) for repository in arguments.history)
        agents = (agent_chats(one, arguments.forms, arguments.numbers) for one in histories)
        return token_pairs(tokenizer, chain(*files, *agents))
    root, seed, encode = Path(sysconfig.get_path("purelib")), arguments.seed, tokenizer.encode_answer
    edits = edit_cases(root, arguments.edits, seed, encode, arguments.kind)
    return edits if arguments.kind else [*edits, *prose_cases(root, 40, seed, encode), *trap_cases(4, seed)]


def replay(pairs: Sequence[TokenPair], rules: Sequence[Rule], setups: Sequence[Setup]) -> list[Row]:
    """Replay pairs by each rule in each setup; return a row for each workload, rule and setup.

    With several workloads, further rows are about all of them together.
    straight: the same figures without the answers that loop; None if all of them loop.
    """
    rows: list[Row] = []
    with outputs.Work() as work:
        advance = work.stage(f"replaying {len(pairs)} answers", len(rules) * len(setups))
        for rule, setup in product(rules, setups):
            plays = play_all(rule.player(setup), pairs, is_cold=not rule.is_warm)
            found, straight = _rows_of(plays), _rows_of([play for play in plays if not play["loops"]])
            for row in found:
                row["straight"] = next((one for one in straight if one["workload"] == row["workload"]), None)
            about = {"drafter": rule.name, "rule": rule.title, "curve": setup.curve.name}
            rows += [about | row for row in found]
            advance()
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    return sorted(rows, key=lambda row: workloads.index(row["workload"]))


def _rows_of(plays: Sequence[Row]) -> list[Row]:
    found = [*summed(plays, "workload")]
    return [*found, *({"workload": "all"} | row for row in summed(plays) if len(found) > 1)]
