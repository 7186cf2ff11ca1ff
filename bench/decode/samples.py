"""Answers as text, each token with where it came from."""

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from bench.decode.rows import Trial
from bench.local_engine import LocalEngine
from bench.workloads import Chat, Turn
from engine.model.tokenizer import Tokenizer

Sample = dict[str, Any]


class Samples:
    """Keeps one answer of each workload and draft type: the last turn of the first chat."""

    def __init__(self, local: LocalEngine) -> None:
        self._tokenizer: Tokenizer = local.engine.tokenizer
        self._found: dict[tuple[str, str], Sample] = {}
        self._turns: dict[tuple[str, str], int] = {}

    def add(self, chat: Chat, trials: Iterable[Trial]) -> None:
        """Look among trials of a chat, the first stream's; of a type the first configuration counts."""
        taken = set(self._found)
        for trial in trials:
            key = trial.workload, trial.configuration.draft_type
            kept = self._found.get(key)
            if key in taken or (kept and kept["num_draft_tokens"] != trial.configuration.num_draft_tokens):
                continue
            run = trial.drafted[-1]
            self._found[key] = {
                "workload": trial.workload,
                "draft_type": trial.configuration.draft_type,
                "num_draft_tokens": trial.configuration.num_draft_tokens,
                "turn": trial.turn,
                "prompt": prompt_text(chat.turns[trial.turn - 1]),
                "tokens": pieces(
                    run.tokens[0], run.origins[0], self._tokenizer.piece, self._tokenizer.eos_ids
                ),
            }

    def all(self) -> list[Sample]:
        """What was kept, in order."""
        return list(self._found.values())


def pieces(
    tokens: Sequence[int],
    origins: Iterable[tuple[str, int]],
    piece: Callable[[int], bytes],
    eos_ids: Collection[int],
) -> list[list[str]]:
    """[text, source] of each token but the end of the answer; a character stands with its last token."""
    sources = [source for source, length in origins for _ in range(length)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        [decoder.decode(piece(token)), source]
        for token, source in zip(tokens, sources, strict=True)
        if token not in eos_ids
    ]


def prompt_text(turn: Turn) -> str:
    """A turn's prompt for people: one message as it is, several with who said them."""
    if turn.text is not None:
        return turn.text
    texts = [str(message.get("content") or message.get("tool_calls") or "") for message in turn.messages]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"{one['role']}: {text}" for one, text in zip(turn.messages, texts, strict=True))
