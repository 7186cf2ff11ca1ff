"""`reprise bench replay`: replay known answers by any drafting rule, without a model, at given step costs.

Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. The answers are the right ones of --workloads, those in files (--pairs, as `reprise serve
--record` writes them), an agent's chats about the changes of a git history (--history), or what an agent did
(--session).
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from reprise.bench import document, options
from reprise.bench.cost_curves import built_in, find_curve
from reprise.bench.document import Column
from reprise.bench.experiment import ArgumentsError, Experiment, Progress, Row, grouped
from reprise.bench.options import Flag
from reprise.bench.replay.pairs import TokenPair, read_history, read_session, token_pairs
from reprise.bench.replay.rules import COMPARED, RULES, Rule, Setup, play_all, summed
from reprise.bench.workloads import WORKLOADS, Chat, lengths_of, make_chats, read_prompts
from reprise.bench.workloads.agents import FORMS, NUMBERS, agent_chats
from reprise.bench.workloads.chats import render
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
    *options.shared(workloads=("edits", "records", "quotes", "passages", "code", "json_rag"),
                    prompt_tokens=None, cases=10, seed=1, **options.OUTPUTS),
    Flag("--pairs", Path, "FILE", [],
         'JSON lines with a "prompt" or "messages", and the "output"; may be repeated.', is_repeated=True),
    Flag("--session", Path, "FILE", [],
         "An agent's session, from ~/.claude/projects or `reprise serve --record`; may be repeated.",
         is_repeated=True),
    Flag("--history", str, "REPO", [], "Make an agent's chats from a git history; may be repeated.",
         is_repeated=True),
    Flag("--changes", options.count, "N", 40, "Newest changes of files of a history."),
    Flag("--revision", str, "REV", "HEAD", "Newest commit of a history to use."),
    Flag("--forms", options.names, "A,B", tuple(form for form in FORMS if form != "whole"),
         f"How an agent writes the changes of a history: any of {', '.join(FORMS)}."),
    Flag("--numbers", options.names, "A,B", ("plain", "arrow"),
         f"How its tool shows the lines of a file: any of {', '.join(NUMBERS)}."),
    Flag("--cost-curve", str, "CURVE", [],
         "Step costs: those of a result document, or a built-in curve; may be repeated. "
         f"Default: {', '.join(built_in())}.", is_repeated=True),
    Flag("--tokenizer", options.model, "MODEL", BUNDLED_MODEL, "Default: the bundled model's."),
    Flag("--chat-template", options.input_file, "FILE", None, "Instead of the model's own."),
    Flag("--drafters", options.names, "RULES", COMPARED, "Rules to replay."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Replay answers, print the figures, write the files, and return the exit status."""
    for name, allowed in (
        ("drafters", RULES), ("forms", FORMS), ("numbers", NUMBERS), ("workloads", WORKLOADS)
    ):  # fmt: skip
        options.check_names(f"--{name}", getattr(arguments, name), tuple(allowed))
    curves = [find_curve(name) for name in arguments.cost_curve or built_in()]
    template = arguments.chat_template and arguments.chat_template.read_text(encoding="utf-8")
    tokenizer = load_tokenizer(arguments.tokenizer, template)
    rules = [RULES[name] for name in arguments.drafters]
    pairs = token_pairs(tokenizer, _chats(arguments, tokenizer))
    if not pairs:
        raise ArgumentsError("there is no pair to replay")
    rows = replay(pairs, rules, [Setup(Settings(), one, tokenizer.line_ends) for one in curves])
    record = document.new_document(arguments, replay={"rows": rows, "curves": list(map(asdict, curves))})
    titles = [f"{rule.name}: {rule.title}" for rule in rules]
    machines = [f"{one.name}: {one.kind}; {one.machine}; {one.source}" for one in curves]
    console = document.make_console(120)
    document.print_rows(console, rows, COLUMNS)
    document.report(arguments, record, [*titles, *machines, NOTE], console)
    return 0


def _chats(arguments: argparse.Namespace, tokenizer: Tokenizer) -> Iterator[Chat]:
    """Yield the chats whose answers are replayed, as the command line asks. Raises OSError, ValueError."""
    for path in arguments.pairs:
        yield from read_prompts(path, for_replay=True)
    for path in arguments.session:
        yield from read_session(path)
    for repository in arguments.history:
        changes = read_history(repository, arguments.changes, revision=arguments.revision)
        yield from agent_chats(changes, arguments.forms, arguments.numbers)
    if not (arguments.pairs or arguments.session or arguments.history):
        for name in arguments.workloads:
            for length in lengths_of(name, arguments.prompt_tokens):
                made = make_chats(
                    name, arguments.cases, arguments.seed, lambda text: len(render(tokenizer, text)), length
                )
                yield from made


def replay(pairs: Sequence[TokenPair], rules: Sequence[Rule], setups: Sequence[Setup]) -> list[Row]:
    """Replay pairs by each rule in each setup; return a row for each workload, rule and setup.

    With several workloads, further rows are about all of them together.
    straight: the same figures without the answers that loop; None if all of them loop.
    """

    def play(setup: Setup, rule: Rule) -> list[Row]:
        plays = play_all(rule.player(setup), pairs, is_cold=not rule.is_warm)
        found, straight = _rows_of(plays), _rows_of([play for play in plays if not play["loops"]])
        about = {"drafter": rule.name, "rule": rule.title, "curve": setup.curve.name}
        alike = {row["workload"]: row for row in straight}
        return [about | row | {"straight": alike.get(row["workload"])} for row in found]

    arms = {rule.name: partial(play, rule=rule) for rule in rules}
    cases = {str(at): setup for at, setup in enumerate(setups)}
    with Progress() as progress:
        label = f"replaying {len(pairs)} answers"
        rows = Experiment(arms, cases, label=lambda *_: label).run(progress)
    order = {name: at for at, name in enumerate(arms)}
    return [
        {name: value for name, value in row.items() if name not in ("arm", "case", "round")}
        for alike in grouped(rows, "workload").values()
        for row in sorted(alike, key=lambda row: order[row["arm"]])
    ]


def _rows_of(plays: Sequence[Row]) -> list[Row]:
    found = [*summed(plays, "workload")]
    return [*found, *({"workload": "all"} | row for row in summed(plays) if len(found) > 1)]
