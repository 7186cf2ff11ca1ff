"""Log probabilities in OpenAI's two shapes: the chat's, entry by entry, the completions', list by list."""

import math
from collections.abc import Sequence

from engine.request import TokenLogprob
from server.output.openai_objects import ChatLogprobs, CompletionLogprobs, LikelyToken, TokenEntry

FLOOR = -9999.0
"""What stands for a probability of nothing: JSON has no infinity. OpenAI's own value."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The shape of /v1/chat/completions. A token that is part of a character shows U+FFFD and its bytes."""
    return ChatLogprobs(content=[_entry(entry) for entry in entries], refusal=None)


def _entry(entry: TokenLogprob) -> TokenEntry:
    return TokenEntry(
        token=_text(entry.token_bytes),
        bytes=list(entry.token_bytes),
        logprob=_finite(entry.logprob),
        top_logprobs=[
            LikelyToken(token=_text(piece), bytes=list(piece), logprob=_finite(logprob))
            for _, piece, logprob in entry.top
        ],
    )


class CompletionTokens:
    """The shape of /v1/completions for one choice, as its tokens come.

    text_offset counts characters of the choice's whole text, over all chunks.
    """

    def __init__(self) -> None:
        self._num_characters = 0
        self._has_begun = False

    def add(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Take more tokens. text: what they brought, as far as it may be sent yet."""
        offsets = [self._advance(entry, text) for entry in entries]
        return CompletionLogprobs(
            tokens=[_spelled(entry.token_bytes) for entry in entries],
            token_logprobs=[None if entry.logprob is None else _finite(entry.logprob) for entry in entries],
            top_logprobs=[None if entry.logprob is None else _likeliest(entry) for entry in entries],
            text_offset=offsets,
        )

    def add_prompt(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Take the tokens of a prompt that is echoed. text: all of it; tokens may have none of it."""
        told = self.add(entries, "")
        written, at, num_before, offsets = text.encode(), 0, 0, []
        for entry in entries:
            is_within = at < len(written) and _is_continuation(written[at])
            offsets.append(max(0, num_before - is_within))
            for piece in (entry.token_bytes, entry.token_bytes.removeprefix(b" ")):
                if written.startswith(piece, at):
                    num_before += _count_characters(piece)
                    at += len(piece)
                    break
        self._num_characters, self._has_begun = len(text), True
        return told.model_copy(update={"text_offset": offsets})

    def _advance(self, entry: TokenLogprob, text: str) -> int:
        """The offset of the next token; counts it."""
        piece = entry.token_bytes
        if not self._has_begun and text and not text.startswith(" "):
            # Some tokenizers begin every word with a space, which a text does not begin with.
            piece = piece.removeprefix(b" ")
        self._has_begun = True
        is_within = bool(piece) and _is_continuation(piece[0])
        offset = max(0, self._num_characters - is_within)
        self._num_characters += _count_characters(piece)
        return offset


def _likeliest(entry: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens, and the token itself if it is not among them."""
    found: dict[str, float] = {}
    for _, piece, logprob in entry.top:
        found.setdefault(_spelled(piece), _finite(logprob))
    found.setdefault(_spelled(entry.token_bytes), _finite(entry.logprob))
    return found


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


def _spelled(piece: bytes) -> str:
    """A token as text, or as OpenAI spells bytes that are no text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and math.isfinite(logprob) and logprob > FLOOR else FLOOR


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _count_characters(piece: bytes) -> int:
    return sum(not _is_continuation(byte) for byte in piece)
