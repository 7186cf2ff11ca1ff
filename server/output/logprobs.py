"""Format log probabilities as OpenAI does: a list of entries for chats, parallel lists for completions."""

import math
from collections.abc import Sequence

from reprise.engine.interface.events import TokenLogprob
from reprise.server.output.openai_objects import ChatLogprobs, CompletionLogprobs, LikelyToken, TokenEntry
from reprise.server.output.parsing.logprob_alignment import PromptPositions, TokenPositions

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
        self._prompt = PromptPositions("")
        self._has_started = False

    def add(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Format the next tokens.

        text: the part of these tokens' text that can be sent already.
        """
        return _format(entries, [self._advance(entry, text) for entry in entries])

    def add_prompt(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Format the next tokens of an echoed prompt.

        text: the whole prompt in the first call, "" in later ones.
        """
        if not self._has_started:
            self._prompt, self._positions = PromptPositions(text), TokenPositions(len(text))
            self._has_started = True
        return _format(entries, [self._prompt.add(entry.token_bytes) for entry in entries])

    def _advance(self, entry: TokenLogprob, text: str) -> int:
        """Return the next token's offset and move past the token."""
        token_bytes = entry.token_bytes
        if not self._has_started and text and not text.startswith(" "):
            # Some tokenizers start every word with a space, which is dropped at the start of a text.
            token_bytes = token_bytes.removeprefix(b" ")
        self._has_started = True
        return self._positions.add(token_bytes)


def _format(entries: Sequence[TokenLogprob], offsets: list[int]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[_token_string(entry.token_bytes) for entry in entries],
        token_logprobs=[None if entry.logprob is None else _finite(entry.logprob) for entry in entries],
        top_logprobs=[None if entry.logprob is None else _top_logprobs(entry) for entry in entries],
        text_offset=offsets,
    )


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
