"""Sample answers as text, with the source of each token."""

import codecs
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from bench.decode.answering import Case
from bench.experiment import Row
from bench.workloads import Turn
from engine.model.tokenizer import Tokenizer


def samples_of(runs: Sequence[Row], cases: Mapping[str, Case], tokenizer: Tokenizer) -> list[Row]:
    """Return one answer per workload and draft type: the last turn of the first chat's first stream."""
    found: dict[tuple[str, str], Row] = {}
    for run in runs:
        last = found.setdefault((run["workload"], run["draft_type"]), run)
        is_same = (run["case"], run["arm"]) == (last["case"], last["arm"])
        if is_same and run["turn"] >= last["turn"]:
            found[run["workload"], run["draft_type"]] = run
    return [
        {
            **{name: run[name] for name in ("workload", "draft_type", "num_draft_tokens", "turn")},
            "prompt": prompt_text(cases[run["case"]].chats[0].turns[run["turn"] - 1]),
            "tokens": token_texts(run["tokens"][0], run["origins"][0], tokenizer.piece, tokenizer.eos_ids),
        }
        for run in found.values()
        if run["draft_type"] != "none"
    ]


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
