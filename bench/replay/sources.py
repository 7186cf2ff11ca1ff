"""Collect the pairs to replay: from files, from workloads, or generated from the packages installed here."""

import argparse
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.replay.edits import edit_cases, prose_cases, trap_cases
from bench.replay.pairs import TokenPair, read_pairs, tokenized
from bench.workloads import WORKLOADS, lengths_of, make_chats
from bench.workloads.chats import render, render_turn
from engine.model.tokenizer import Tokenizer


def collect(arguments: argparse.Namespace, tokenizer: Tokenizer) -> tuple[list[TokenPair], list[Row]]:
    """Return all pairs that the command line asks for, and a row for each of their sources.

    num_empty: pairs left out because their prompt or answer has no token.
    Raises PairsError or ArgumentsError; the latter also if there are no pairs.
    """
    pairs: list[TokenPair] = []
    sources: list[Row] = []

    def add(name: str, added: Sequence[TokenPair], num_empty: int = 0) -> None:
        pairs.extend(added)
        sources.append({"name": name, "num_pairs": len(added), "num_empty": num_empty})

    for path in arguments.pairs or ():
        read = read_pairs(path)
        found = tokenized(read, tokenizer.encode_answer)
        add(str(path), found, len(read) - len(found))
    for name in arguments.workloads or ():
        add(f"workload {name}", _of_workload(name, arguments, tokenizer))
    if not sources:
        source = [Path(sysconfig.get_path("purelib"))], tokenizer.encode_answer
        if arguments.edits:
            edits = edit_cases(*source, arguments.edits, arguments.seed)
            add("generated edits", [pair for pair in edits if arguments.kind in ("", pair.id)])
        if arguments.prose and not arguments.kind:
            add("documents", prose_cases(*source, arguments.prose, arguments.seed))
        if arguments.traps and not arguments.kind:
            add("traps", trap_cases(arguments.traps, arguments.seed))
    if not pairs:
        raise ArgumentsError("there is no pair to replay")
    return pairs, sources


def _of_workload(name: str, arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[TokenPair]:
    """Return the reference answers of a workload's turns, each after the chat so far."""
    if name not in WORKLOADS:
        raise ArgumentsError(f"{name}: no such workload; the workloads are {', '.join(WORKLOADS)}")
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
