"""Make the views of conversations: encoded, in slices, and kept for the next turn."""

import contextlib
import hashlib
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import takewhile
from typing import Any

from pydantic_core import to_json

from engine.request import Frame, View
from server.engine_protocol import TokenizerProtocol
from server.tool_formats.harmony_prompt import to_harmony_messages
from server.views.arguments import AS_IT_IS, AS_JSON, ArgumentForm, probe_arguments
from server.views.forms import block_forms, call_form
from server.views.shapes import read_shapes
from server.views.texts import Wanted, texts_of

MAX_TOKENS = 1 << 17
"""Maximum tokens of the views of one request. Those of the newest texts come first."""

SLICE_CHARACTERS = 4096
"""Characters that one slice reads or encodes, about 1,000 tokens; more only if a line or a word is longer."""

_BEFORE_WORD = re.compile(r"(?<=[a-zA-Z]) (?=[a-zA-Z])")

Json = dict[str, Any]
Views = list[View]
Make = Callable[[Views], Iterator[None]]
"""Adds views to a list, in slices."""


class ViewMaker:
    """Makes views, on the tokenizer's thread.

    max_kept_bytes: views used last are kept, up to so many bytes; a token takes four.
    """

    def __init__(self, tokenizer: TokenizerProtocol, max_kept_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[bytes, Sequence[View]] = OrderedDict()
        self.kept_bytes = 0

    @cached_property
    def _arguments(self) -> ArgumentForm:
        """How the model writes text in the arguments of its calls."""
        if not self._tokenizer.markers.can_call:
            return AS_IT_IS
        try:
            return probe_arguments(self._render) or AS_JSON
        # Not every template shows calls.
        except ValueError:
            return AS_JSON

    def _render(self, messages: Sequence[Json]) -> str:
        tokenizer = self._tokenizer
        given = to_harmony_messages(messages) if tokenizer.markers.is_harmony else list(messages)
        return tokenizer.decode(tokenizer.render_chat(given, end="messages"))

    def make(self, messages: Sequence[Json], tools: Sequence[Json], owner: str, views: Views) -> Iterator[None]:
        """Add to a list the views that are kept, and return the work of making and adding the others.

        messages, tools: as chat templates expect them. owner: nobody else's views are found for it.
        """
        missing: list[tuple[bytes, Make]] = []
        num_tokens = 0
        for seed, make in self._works(messages, tools):
            key = hashlib.blake2b(f"{owner}\0{seed}".encode(errors="surrogatepass"), digest_size=16).digest()
            if key in self._kept:
                self._kept.move_to_end(key)
                num_tokens += _count(self._kept[key])
                if num_tokens <= MAX_TOKENS:
                    views += self._kept[key]
            else:
                missing.append((key, make))
        return self._make_missing(missing, views, MAX_TOKENS - num_tokens)

    def _works(self, messages: Sequence[Json], tools: Sequence[Json]) -> Iterator[tuple[str, Make]]:
        """Yield what each group of views depends on, and how it is made."""
        yield to_json(tools).decode(), partial(self._make_frames, tools)
        for text, wanted in texts_of(messages, tools, self._arguments):
            yield f"{wanted}\0{text}", partial(self._make_views, text, wanted)

    def _make_missing(
        self, missing: Sequence[tuple[bytes, Make]], views: Views, room_tokens: int
    ) -> Iterator[None]:
        for key, make in missing:
            made: Views = []
            yield from make(made)
            self._keep(key, made)
            room_tokens -= _count(made)
            if room_tokens < 0:
                return
            views += made

    def _keep(self, key: bytes, made: Views) -> None:
        if key not in self._kept:
            self.kept_bytes += 4 * _count(made)
        self._kept[key] = made
        while self.kept_bytes > self._max_kept_bytes:
            self.kept_bytes -= 4 * _count(self._kept.popitem(last=False)[1])

    def _make_views(self, text: str, wanted: Wanted, made: Views) -> Iterator[None]:
        parts: list[Sequence[str]] = []
        for piece in _pieces(text):
            parts.append([*wanted.write(read_shapes(piece))])
            yield
        for written in map("".join, zip(*parts, strict=True)):
            view = array("I")
            for chunk in _chunks(written):
                view.extend(self._tokenizer.encode_apart(chunk))
                yield
            if view:
                made.append(view)

    def _make_frames(self, tools: Sequence[Json], made: Views) -> Iterator[None]:
        tokenizer = self._tokenizer
        forms = [*block_forms(self._arguments)]
        for tool in tools:
            # Not every template shows calls.
            with contextlib.suppress(ValueError):
                if (form := call_form(tool, self._render)) is not None:
                    forms.append(form)
            yield
        for fixed, copied in forms:
            ids = [tokenizer.encode_apart(text) for text in fixed]
            ids[-1] = [*takewhile(lambda token: token not in tokenizer.eos_ids, ids[-1])]
            made.append(Frame(tuple(map(tuple, ids)), copied))
        yield


def _count(views: Sequence[View]) -> int:
    """Count the tokens of views, and something for what holds them."""
    return sum(16 + (sum(map(len, view.fixed)) if isinstance(view, Frame) else len(view)) for view in views)


def _pieces(text: str) -> Iterator[str]:
    """Cut a text where lines end."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + SLICE_CHARACTERS) + 1 or len(text)
        yield text[start:end]
        start = end


def _chunks(text: str) -> Iterator[str]:
    """Cut a text before words within lines, where tokenizers cut it too."""
    start = 0
    while start < len(text):
        match = _BEFORE_WORD.search(text, start + SLICE_CHARACTERS)
        end = match.start() if match else len(text)
        yield text[start:end]
        start = end
