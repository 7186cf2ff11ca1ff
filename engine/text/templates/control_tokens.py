"""Keep text of users and tools from becoming special tokens: text that spells one is encoded as text."""

import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from reprise.engine.text.tokens.encoding import TextEncoder

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Stand around such text while a template is rendered. Unicode keeps both from ever being characters."""


class ControlTokens:
    """The tokens that a chat template writes around messages: special ones, and those in its own text.

    wrapped: one of mlx-lm's tokenizers. template: the text of the chat template; "" if it is not text.
    """

    def __init__(self, wrapped: Any, template: str, encoder: TextEncoder | None = None) -> None:
        self._encoder = encoder or TextEncoder(wrapped._tokenizer)
        self._backend = wrapped.backend_tokenizer
        self._template = template
        self._known: dict[str, list[int]] = {}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Matches a control token in text; of two at one place, the longer."""
        added = self._backend.get_added_tokens_decoder().values()
        texts = {
            entry.content
            for entry in added
            if entry.special or (entry.content in self._template and not entry.content.isspace())
        }
        longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def _marked(self) -> re.Pattern[str]:
        """Matches a marked token, or a mark that the template has parted from its token."""
        return re.compile(f"{OPEN}({self._pattern.pattern}){CLOSE}|[{OPEN}{CLOSE}]")

    def mark(self, value: Any, pattern: re.Pattern[str] | None = None) -> Any:
        """Mark the control tokens in all strings of a JSON value, but not in the keys of its objects.

        pattern: matches the tokens to mark; None for all. A value without any is returned itself.
        """
        pattern = pattern or self._pattern
        match value:
            case str():
                if not pattern.search(value):
                    return value
                bare = value.replace(OPEN, "").replace(CLOSE, "")
                return pattern.sub(rf"{OPEN}\g<0>{CLOSE}", bare)
            case dict():
                marked = {key: self.mark(one, pattern) for key, one in value.items()}
                return marked if any(marked[key] is not one for key, one in value.items()) else value
            case list():
                items = [self.mark(one, pattern) for one in value]
                return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def mark_messages(
        self, messages: list[dict[str, Any]], in_answers: re.Pattern[str]
    ) -> list[dict[str, Any]]:
        """Mark control tokens in all messages; in the assistant's, only those that in_answers matches.

        The model itself wrote the assistant's messages, which stay as they are in the prefix cache.
        The messages themselves are returned if there is nothing to mark.
        """
        marked = [
            {**self.mark(one, in_answers if one["role"] == "assistant" else None), "role": one["role"]}
            for one in messages
        ]
        is_same = all(
            new is old or all(new[key] is old[key] for key in old)
            for new, old in zip(marked, messages, strict=True)
        )
        return messages if is_same else marked

    def encode(self, rendered: str) -> list[int]:
        """Return the ids of a rendered prompt. Marked tokens are encoded as text, without their marks."""
        # [text, marked token or None, text, ..., text]
        parts: list[str | None] = self._marked.split(rendered)
        ids = self._encoder.encode(parts[0] or "")
        texts = self._encode_inner([text or "" for text in parts[2::2]])
        for token, text_ids in zip(parts[1::2], texts, strict=True):
            ids += self._ids_as_text(token) if token else []
            ids += text_ids
        return ids

    def _ids_as_text(self, token: str) -> list[int]:
        """Return the ids of the text of a control token."""
        if token not in self._known:
            (ids,) = self._encode_inner([token], splits_specials=True)
            if self._backend.token_to_id(token) in ids:
                # An added token that is not special is found even so, but not in two halves.
                ids = [one for half in self._encode_inner([token[:1], token[1:]]) for one in half]
            self._known[token] = ids
        return self._known[token]

    def _encode_inner(self, texts: Sequence[str], *, splits_specials: bool = False) -> list[list[int]]:
        """Return the ids of each text, as they are after other text."""
        if not texts:
            return []
        break_ids = self._encoder.encode("\n")
        encode = partial(self._encoder.encode_all, splits_specials=splits_specials)
        # After a line break no tokenizer puts a space of its own in front of the text.
        found = encode([f"\n{text}" for text in texts])
        return [
            ids[len(break_ids) :] if ids[: len(break_ids)] == break_ids else encode([text])[0]
            for text, ids in zip(texts, found, strict=True)
        ]
