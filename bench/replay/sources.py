"""Collect the pairs to replay: from files, from workloads, or generated from the packages installed here."""

import argparse
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import ArgumentsError
from bench.replay.edits import edit_cases, prose_cases, trap_cases
from bench.replay.pairs import TokenPair, read_pairs, tokenized
from bench.workloads import WORKLOADS, lengths_of, make_chats
from bench.workloads.chats import render, render_turn


@dataclass(frozen=True, slots=True)
class Source:
    """A source of pairs, in words. num_empty: pairs left out because their prompt or answer has no token."""

    name: str
    num_pairs: int
    num_empty: int = 0


class Vocabulary:
    """The tokenizer of a model folder, read without the libraries that run models.

    Raises ArgumentsError if the folder has none that can be read.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.folder = folder
        file = folder / "tokenizer.json" if folder.is_dir() else folder
        try:
            self.tokenizer = Tokenizer.from_file(str(file))
        # tokenizers raises plain Exception.
        except Exception as fault:  # noqa: BLE001
            raise ArgumentsError(f"{file} cannot be read as a tokenizer: {fault}") from None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens at its start or end."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @property
    def line_ends(self) -> frozenset[int]:
        """The tokens whose text contains a line break."""
        texts = self.tokenizer.decode_batch([[token] for token in range(self.tokenizer.get_vocab_size())])
        return frozenset(token for token, text in enumerate(texts) if "\n" in text)


def collect(arguments: argparse.Namespace, vocabulary: Vocabulary) -> tuple[list[TokenPair], list[Source]]:
    """Return all pairs that the command line asks for, and their sources.

    Raises PairsError or ArgumentsError; the latter also if there are no pairs.
    """
    pairs: list[TokenPair] = []
    sources: list[Source] = []

    def add(name: str, added: Sequence[TokenPair], num_empty: int = 0) -> None:
        pairs.extend(added)
        sources.append(Source(name, len(added), num_empty))

    for path in arguments.pairs or ():
        read = read_pairs(path)
        found = tokenized(read, vocabulary.encode)
        add(str(path), found, len(read) - len(found))
    for name in arguments.workloads or ():
        add(f"workload {name}", _of_workload(name, arguments, vocabulary))
    if not sources:
        packages = [Path(sysconfig.get_path("purelib"))]
        if arguments.edits:
            edits = edit_cases(packages, vocabulary.encode, arguments.edits, arguments.seed)
            kept = [pair for pair in edits if arguments.kind in ("", pair.id)]
            add("generated edits", kept)
        if arguments.prose and not arguments.kind:
            add("documents", prose_cases(packages, vocabulary.encode, arguments.prose, arguments.seed))
        if arguments.traps and not arguments.kind:
            add("traps", trap_cases(arguments.traps, arguments.seed))
    if not pairs:
        raise ArgumentsError("there is no pair to replay")
    return pairs, sources


def _of_workload(name: str, arguments: argparse.Namespace, vocabulary: Vocabulary) -> list[TokenPair]:
    """Return the reference answers of a workload's turns, each after the chat so far."""
    if name not in WORKLOADS:
        raise ArgumentsError(f"{name}: no such workload; the workloads are {', '.join(WORKLOADS)}")
    if not (vocabulary.folder / "config.json").is_file():
        raise ArgumentsError(
            f"{vocabulary.folder} is not a model folder; workloads need one for its chat template"
        )
    # Chat templates need mlx-lm, which is slow to import.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(vocabulary.folder)

    def count(text: str) -> int:
        return len(render(tokenizer, text))

    chats = [
        chat
        for length in lengths_of(name, arguments.prompt_tokens)
        for chat in make_chats(name, arguments.chats, arguments.seed, count, length)
    ]
    return [
        TokenPair(
            render_turn(tokenizer, turn),
            tuple(tokenizer.encode_answer(turn.reference)),
            name,
            f"{name} {number}",
            at,
            is_measured=turn.is_measured,
        )
        for number, chat in enumerate(chats, 1)
        for at, turn in enumerate(chat.turns, 1)
        if turn.reference
    ]
