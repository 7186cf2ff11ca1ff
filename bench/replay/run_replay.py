"""`reprise bench replay`: replay known answers by any drafting rule, without a model, at given step costs.

Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. The answers are the right ones of --workloads, those in files (--pairs, as `reprise serve
--record` writes them), an agent's chats about the changes of a git history (--history), or what an agent did
(--session). Agents' answers are also shown by kind: the tool that they call first.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from reprise.bench import document, options
from reprise.bench.cost_curves import built_in, find_curve
from reprise.bench.document import Column
from reprise.bench.experiment import ArgumentsError, Progress, Row, grouped
from reprise.bench.options import Flag
from reprise.bench.replay.pairs import TokenPair, read_history, token_pairs
from reprise.bench.replay.prompts import read_rows
from reprise.bench.replay.rules import (
    COMPARED,
    HEAD,
    RULES,
    Player,
    Rule,
    Setup,
    SimulatedHead,
    forget,
    play_pair,
    summed,
)
from reprise.bench.replay.sessions import read_sessions
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
    Column("low", "low", "2"), Column("high", "high", "2"),
    Column("slowest", "least", "2"), Column("acceptance", "accepted", "%"), Column("coverage", "copied", "%"),
]  # fmt: skip
NOTE = """\
TPF: tokens per forward pass. speed: speedup over plain decoding; low, high: its 90 % interval, if chats
are drawn anew. least: the lowest speedup of a pair.
accepted: share of drafted tokens. copied: share of the answer that came from drafts.
Costs of drafts that are longer than a curve are a guess, and grammars are left out."""
READING = [
    Column("workload", "workload"), Column("chats", "chats", "0"), Column("turns", "turns", "0"),
    Column("first", "first\nprompt", "0"), Column("lost", "thoughts\nlost", "0"),
    Column("returned", "thoughts\nreturned", "0"), Column("ahead", "+ read\nahead", "0"),
    Column("turn", "+ turn\nahead", "0"), Column("kept", "thoughts\nkept", "0"),
]  # fmt: skip
READING_NOTE = """\
Prompt tokens that a chat reads after its first prompt while its agent waits: means of the chats. lost: the
client does not send thoughts back. kept: the template keeps all of them, by its switch. All prompts and
answers are cached, and each gap between turns is long enough for what is read ahead."""
EPILOG = "rules:\n" + "\n".join(f"  {name:18} {rule.title}" for name, rule in RULES.items())
FLAGS = (
    *options.shared(workloads=("edits", "records", "quotes", "passages", "code", "json_rag"),
                    prompt_tokens=None, cases=10, seed=1, **options.OUTPUTS),
    Flag("--pairs", Path, "FILE", [],
         'JSON lines with a "prompt" or "messages", and the "output"; may be repeated.', is_repeated=True),
    Flag("--session", Path, "FILE", [],
         "An agent's session, or a folder of sessions, shown together: of Claude Code, Codex, OpenCode "
         "(`opencode export`) or `reprise serve --record`; may be repeated.", is_repeated=True),
    Flag("--answers", options.count, "N", None, "Replay only the first answers of each session's chat."),
    Flag("--reading", None, None, False,
         "Count the prompt tokens that are read while an agent waits, in place of drafts."),
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
    Flag("--head-rates", options.rates, "A,B", (HEAD.rate,),
         "Chances that a token of a simulated head is right; each makes a rule of its own."),
    Flag("--head-cost", options.number, "STEPS", HEAD.token_steps,
         "Cost of such a token, in plain steps."),
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
    if arguments.reading:
        return _count_reading(arguments, tokenizer)
    heads = [SimulatedHead(rate, arguments.head_cost) for rate in arguments.head_rates]
    rules = [rule for name in arguments.drafters for rule in RULES[name].with_heads(heads)]
    pairs = token_pairs(tokenizer, _chats(arguments, tokenizer))
    rows = replay(pairs, rules, [Setup(Settings(), one, tokenizer.line_ends) for one in curves])
    if not rows:
        raise ArgumentsError("there is no pair to replay")
    record = document.new_document(arguments, replay={"rows": rows, "curves": list(map(asdict, curves))})
    titles = [f"{rule.name}: {rule.title}" for rule in rules]
    machines = [f"{one.name}: {one.kind}; {one.machine}; {one.source}" for one in curves]
    console = document.make_console(120)
    document.print_rows(console, rows, COLUMNS)
    document.report(arguments, record, [*titles, *machines, NOTE], console)
    return 0


def _count_reading(arguments: argparse.Namespace, tokenizer: Tokenizer) -> int:
    """Count the prompt tokens that are read while an agent waits."""
    with Progress() as progress:
        rows = read_rows(tokenizer, _chats(arguments, tokenizer), progress.show)
    if not rows:
        raise ArgumentsError("there is no chat of several turns")
    console = document.make_console(120)
    document.print_rows(console, rows, READING)
    document.report(
        arguments, document.new_document(arguments, replay={"rows": rows}), [READING_NOTE], console
    )
    return 0


def _chats(arguments: argparse.Namespace, tokenizer: Tokenizer) -> Iterator[Chat]:
    """Yield the chats whose answers are replayed, as the command line asks. Raises OSError, ValueError."""
    for path in arguments.pairs:
        yield from read_prompts(path, for_replay=True)
    for path in arguments.session:
        for chat in read_sessions(path):
            yield replace(chat, turns=chat.turns[: arguments.answers])
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


def replay(pairs: Iterable[TokenPair], rules: Sequence[Rule], setups: Sequence[Setup]) -> list[Row]:
    """Replay pairs by each rule in each setup; return rows for each workload, rule and setup.

    With several workloads, further rows are about all of them together; with several kinds of answers, about
    each kind.
    """
    arms: list[tuple[Row, Rule, Player, list[Row]]] = []
    for rule, setup in product(rules, setups):
        about = {"drafter": rule.name, "rule": rule.title, "curve": setup.curve.name}
        arms.append((about, rule, rule.player(setup), []))
    chat = ""
    with Progress() as progress:
        for pair in pairs:
            progress.show(f"replaying {pair.workload or 'answers'}")
            for _, rule, player, plays in arms:
                if not rule.is_warm and (not pair.chat or pair.chat != chat):
                    forget(player)
                plays.append(play_pair(player, pair))
            chat = pair.chat
    rows = [about | row for about, _, _, plays in arms for row in _rows_of(plays)]
    return [row for alike in grouped(rows, "workload").values() for row in alike]


def _rows_of(plays: Sequence[Row]) -> list[Row]:
    found = [*summed(plays, "workload")]
    kinds = [
        {"workload": f"answers: {row.pop('kind')}"} | row for row in summed(plays, "kind") if row["kind"]
    ]
    return [
        *found,
        *({"workload": "all"} | row for row in summed(plays) if len(found) > 1),
        *(kinds if len(kinds) > 1 else ()),
    ]
