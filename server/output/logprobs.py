"""Format log probabilities as OpenAI does: a list of entries for chats, parallel lists for completions."""

import math
from collections.abc import Sequence

from engine.request import TokenLogprob
from server.output.logprob_alignment import TokenPositions
from server.output.openai_objects import ChatLogprobs, CompletionLogprobs, LikelyToken, TokenEntry

FLOOR = -9999.0
"""Replaces the log probability of a token that cannot occur, as in OpenAI's API: JSON has no infinity."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Format log probabilities for /v1/chat/completions.

    A token that holds only part of a character is shown as U+FFFD, along with its bytes.
    """
    return ChatLogprobs(content=[_entry(entry) for entry in entries], refusal=None)


def _entry(entry: TokenLogprob) -> TokenEntry:
    return TokenEntry(
        token=_text(entry.token_bytes),
        bytes=list(entry.token_bytes),
        logprob=_finite(entry.logprob),
        top_logprobs=[
            LikelyToken(token=_text(token_bytes), bytes=list(token_bytes), logprob=_finite(logprob))
            for _, token_bytes, logprob in entry.top
        ],
    )


class CompletionLogprobsBuilder:
    """Log probabilities of one choice of /v1/completions, formatted as its tokens arrive.

    text_offset counts characters from the start of the choice's text, over all chunks.
    """

    def __init__(self) -> None:
        self._positions = TokenPositions()
        self._has_started = False

    def add(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Format the next tokens.

        text: the part of their text that can be sent already.
        """
        offsets = [self._advance(entry, text) for entry in entries]
        return CompletionLogprobs(
            tokens=[_token_string(entry.token_bytes) for entry in entries],
            token_logprobs=[None if entry.logprob is None else _finite(entry.logprob) for entry in entries],
            top_logprobs=[None if entry.logprob is None else _top_logprobs(entry) for entry in entries],
            text_offset=offsets,
        )

    def add_prompt(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Format the tokens of an echoed prompt.

        text: the whole prompt. Some tokens, such as special ones, may not appear in it.
        """
        logprobs = self.add(entries, "")
        encoded, at, num_before, offsets = text.encode(), 0, 0, []
        for entry in entries:
            is_within = at < len(encoded) and _is_continuation(encoded[at])
            offsets.append(max(0, num_before - is_within))
            for token_bytes in (entry.token_bytes, entry.token_bytes.removeprefix(b" ")):
                if encoded.startswith(token_bytes, at):
                    num_before += _count_characters(token_bytes)
                    at += len(token_bytes)
                    break
        self._positions, self._has_started = TokenPositions(len(text)), True
        return logprobs.model_copy(update={"text_offset": offsets})

    def _advance(self, entry: TokenLogprob, text: str) -> int:
        """Return the next token's offset and move past the token."""
        token_bytes = entry.token_bytes
        if not self._has_started and text and not text.startswith(" "):
            # Some tokenizers start every word with a space, which is dropped at the start of a text.
            token_bytes = token_bytes.removeprefix(b" ")
        self._has_started = True
        return self._positions.add(token_bytes)


def _top_logprobs(entry: TokenLogprob) -> dict[str, float]:
    """Return the most likely tokens, and the sampled token if it is not among them."""
    found: dict[str, float] = {}
    for _, token_bytes, logprob in entry.top:
        found.setdefault(_token_string(token_bytes), _finite(logprob))
    found.setdefault(_token_string(entry.token_bytes), _finite(entry.logprob))
    return found


def _text(token_bytes: bytes) -> str:
    return token_bytes.decode(errors="replace")


def _token_string(token_bytes: bytes) -> str:
    r"""Return a token as text, or in OpenAI's notation bytes:\xff if it is not valid UTF-8."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and math.isfinite(logprob) and logprob > FLOOR else FLOOR


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _count_characters(token_bytes: bytes) -> int:
    return sum(not _is_continuation(byte) for byte in token_bytes)
