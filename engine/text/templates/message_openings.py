"""Find where messages begin in the ids of a prompt, by the tokens with which a chat template begins them.

These tokens are learned once, from a few short conversations; no request is rendered a second time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reprise.engine.interface.request import PromptEnd

HEAD_CHARACTERS, HEAD_TOKENS = 200, 16
"""How much of a message is searched in the prompt, to find where its text begins."""

Render = Callable[[list[dict[str, Any]], PromptEnd], list[int]]
"""Renders messages and encodes them. Raises almost anything if the template refuses them."""


@dataclass(frozen=True, slots=True)
class MessageOpenings:
    """The tokens with which messages begin in prompts.

    answer: the first two tokens that open an answer; empty if none do.
    num_lasting: how many of the tokens that open an answer stay in the prompts of later turns.
    tokens: control tokens with which messages begin.
    user: the first two tokens of a user's message; empty if it does not begin with a control token.
    num_user: number of tokens before the text of a user's message.
    """

    answer: tuple[int, ...] = ()
    num_lasting: int = 0
    tokens: frozenset[int] = frozenset()
    user: tuple[int, ...] = ()
    num_user: int = 0

    def head_end(self, ids: Sequence[int], text: Sequence[int], *, is_whole: bool) -> int:
        """Return the index in a prompt where system text and tools end and the user's first message begins.

        Some templates write system text into the user's first message, where the user's own text is searched.
        text: the first ids of the user's text, encoded alone. is_whole: whether they are all of it: the
            system text may contain them too. Returns 0 if that index is not found.
        """
        held = np.asarray(ids, np.int32)
        if not self.user or (start := _find(held, self.user, 0, len(held))) is None:
            return 0
        openings = np.flatnonzero(np.isin(held[start + 1 :], list(self.tokens)))
        end = start + 1 + int(openings[0]) if len(openings) else len(held)
        # The first token may be another one after the text before it.
        for skipped in (0, 1):
            found = _find(held, text[skipped:], start, end, is_last=is_whole)
            if found is not None and found - skipped > start + self.num_user:
                # Without the white space before it, which may be part of a longer token in other prompts.
                return found - skipped - 1
        return start


def find_openings(render: Render, control: frozenset[int]) -> MessageOpenings:
    """Render short conversations, and compare them. control: the ids of control tokens."""
    one, other, said = (
        {"role": role, "content": text} for role, text in (("user", "a"), ("user", "b"), ("assistant", "b"))
    )
    try:
        closed, opened, changed = (
            render([one], "messages"),
            render([one], "answer"),
            render([other], "messages"),
        )
    # A template is a program that comes with the model: it may raise anything.
    except Exception:
        return MessageOpenings()
    answer = tuple(opened[len(closed) :][:2]) if opened[: len(closed)] == closed else ()
    num_lasting = 0
    if answer:
        try:
            num_lasting = _count_common(opened, render([one, said, one], "messages")) - len(closed)
        except Exception:
            num_lasting = 0
    text_at = _count_common(closed, changed)
    before = [at for at in range(text_at) if closed[at] in control]
    # Where messages begin with more than one control token, it is the one that opens an answer, too.
    place = next(
        (at for at in reversed(before) if closed[at] == (answer or (None,))[0]),
        before[-1] if before else None,
    )
    user = tuple(closed[place : place + 2]) if place is not None else ()
    tokens = frozenset({*answer[:1], *user[:1]} & control)
    return MessageOpenings(answer, max(0, num_lasting), tokens, user, 0 if place is None else text_at - place)


def _count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the leading tokens that both have."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def _find(
    held: "np.ndarray[Any, np.dtype[np.int32]]",
    sought: Sequence[int],
    start: int,
    end: int,
    *,
    is_last: bool = False,
) -> int | None:
    """Return where the sought tokens first, or last, begin in held[start:end]; None if nowhere."""
    count = len(sought)
    if not count or end - start < count:
        return None
    places = np.flatnonzero(held[start : end - count + 1] == sought[0]) + start
    order = reversed(places.tolist()) if is_last else iter(places.tolist())
    wanted = np.asarray(sought, np.int32)
    return next((at for at in order if np.array_equal(held[at : at + count], wanted)), None)
