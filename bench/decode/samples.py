"""Sample answers as text, with the source of each token."""

import codecs
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bench.decode.comparing import Group
from bench.workloads import Turn
from engine.model.tokenizer import Tokenizer

Sample = dict[str, Any]


def samples_of(
    runs: Sequence[Mapping[str, Any]], groups: Mapping[str, Group], tokenizer: Tokenizer
) -> list[Sample]:
    """Return one answer per workload and draft type: the last turn of the first chat's first stream."""
    found: dict[tuple[str, str], Sample] = {}
    taken: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        key = run["workload"], run["draft_type"]
        if run["draft_type"] == "none" or taken.setdefault(key, (run["case"], run["arm"])) != (
            run["case"],
            run["arm"],
        ):
            continue
        if run["turn"] < found.get(key, {"turn": 0})["turn"]:
            continue
        texts = token_texts(run["tokens"][0], run["origins"][0], tokenizer.piece, tokenizer.eos_ids)
        found[key] = {
            **{name: run[name] for name in ("workload", "draft_type", "num_draft_tokens", "turn")},
            "prompt": prompt_text(groups[run["case"]].chats[0].turns[run["turn"] - 1]),
            "tokens": texts,
        }
    return list(found.values())


def token_texts(
    tokens: Sequence[int],
    origins: Iterable[Sequence[Any]],
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
