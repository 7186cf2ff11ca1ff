"""Sample answers as text, with the source of each token."""

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from bench.decode.rows import Trial
from bench.local_engine import LocalEngine
from bench.workloads import Chat, Turn
from engine.model.tokenizer import Tokenizer

Sample = dict[str, Any]


class Samples:
    """Keeps one answer per workload and draft type: the last turn of the first chat."""

    def __init__(self, local: LocalEngine) -> None:
        self._tokenizer: Tokenizer = local.engine.tokenizer
        self._found: dict[tuple[str, str], Sample] = {}
        self._turns: dict[tuple[str, str], int] = {}

    def add(self, chat: Chat, trials: Iterable[Trial]) -> None:
        """Keep the last answer of a chat's first stream, for each draft type in its first configuration."""
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
                "tokens": token_texts(
                    run.tokens[0], run.origins[0], self._tokenizer.piece, self._tokenizer.eos_ids
                ),
            }

    def all(self) -> list[Sample]:
        """Return all samples, in order."""
        return list(self._found.values())


def token_texts(
    tokens: Sequence[int],
    origins: Iterable[tuple[str, int]],
    token_bytes: Callable[[int], bytes],
    eos_ids: Collection[int],
) -> list[list[str]]:
    """Return [text, source] of each token except end tokens; a split character belongs to its last token."""
    sources = [source for source, length in origins for _ in range(length)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        [decoder.decode(token_bytes(token)), source]
        for token, source in zip(tokens, sources, strict=True)
        if token not in eos_ids
    ]


def prompt_text(turn: Turn) -> str:
    """Return a turn's prompt for display; several messages are prefixed with their roles."""
    if turn.text is not None:
        return turn.text
    texts = [str(message.get("content") or message.get("tool_calls") or "") for message in turn.messages]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"{one['role']}: {text}" for one, text in zip(turn.messages, texts, strict=True))
