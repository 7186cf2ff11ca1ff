"""Make the views of conversations: encoded, in slices of work, and kept for the next turn."""

import asyncio
import contextlib
import hashlib
import logging
import re
from array import array
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.request import DraftType, Frame, SignedLines, View
from reprise.server.http.executor import Executor
from reprise.server.prompt.encoder import shown, to_harmony_messages
from reprise.server.prompt.view_texts import (
    AS_IT_IS,
    AS_JSON,
    HARMONY_REASONING,
    ArgumentForm,
    Form,
    Wanted,
    block_forms,
    call_forms,
    harmony_calls,
    patch_forms,
    probe_arguments,
    read_shapes,
    rendered_call,
    spoken_patches,
    texts_of,
)
from reprise.server.requests.chat import ChatRequest

if TYPE_CHECKING:
    from reprise.engine.engine import Engine
    from reprise.engine.generating.generating_engine import GeneratingEngine

log = logging.getLogger("reprise.server")

MAX_VIEW_BYTES = 16 << 20
"""Maximum bytes of views that are kept for later turns: four million tokens."""

MAX_TOKENS = 1 << 17
"""Maximum tokens of the views of one request. Those of the newest texts come first."""

SLICE_CHARACTERS = 4096
"""Characters that one slice reads or encodes, about 1,000 tokens, and up to the end of a line or word."""

SLICE_LINES = 96
"""Lines that one slice reads: short ones take time by their number, not by their characters."""

SIGNS = " -+"
"""The signs of lines in patches: kept, removed and added."""

LINE_CHARACTERS = 100
"""Characters that take as long as to begin with another line."""

MAX_SLICE_CHARACTERS = 4 * SLICE_CHARACTERS
"""A longer line or word is cut: other threads wait for a slice, and there only some drafts are lost."""

_TIGHT = r'''
    \" \", \") )) )] }) ): ), ); ], }, }; () [] {} """ ()) ()] (): (), (); )); )), ]) }), }); ")
    ') "), '), "); "] '] "], ', ", "; '; (" "> /> */ => ({ ([ ." ').
    '''
_SPACED = r'''} { }; }, ) ), ); ] ], }); """ */ = ( [ + \ // '''
VALUE_ENDS = (*")]}>:;,.!?'+-*/=_|&%#@$^~`", *_TIGHT.split(), *(f" {end}" for end in _SPACED.split()))
LINE_ENDS = ("\n", *(f"{end}\n" for end in VALUE_ENDS))
"""Ends of values that tokenizers may join to the text behind them, and the same of those that end with
a line."""

SLICE_ENDS = 16
"""How many of them one slice tries."""

_BEFORE_WORD = re.compile(r"(?<=[a-zA-Z]) (?=[a-zA-Z])")

Json = dict[str, Any]
Views = list[View]
Make = Callable[[Views], Iterator[None]]
"""Adds views to a list, in slices."""


class ViewMaker:
    """Makes the views of conversations, a slice of work at a time.

    max_kept_bytes: limit of the kept views, of which the last used ones stay; a token takes four bytes.
    """

    def __init__(self, engine: "Engine | GeneratingEngine", max_kept_bytes: int) -> None:
        self._engine = engine
        self._kept = BoundedCache[Views](lambda views: 4 * _count(views), max_kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """The bytes of all kept views."""
        return self._kept.num_bytes

    @cached_property
    def _arguments(self) -> ArgumentForm:
        """How the model writes text in the arguments of its calls."""
        if not self._engine.tokenizer.markers.can_call:
            return AS_IT_IS
        try:
            return probe_arguments(self._render) or AS_JSON
        # Not every template shows calls.
        except ValueError:
            return AS_JSON

    def _render(self, messages: Sequence[Json]) -> str:
        tokenizer = self._engine.tokenizer
        given = to_harmony_messages(messages) if tokenizer.markers.is_harmony else list(messages)
        return tokenizer.decode(tokenizer.render_chat(given, end="messages"))

    def _write_call(self, call: Json) -> Iterable[str]:
        if self._engine.tokenizer.markers.is_harmony:
            return harmony_calls(call)
        return [rendered_call(call, self._render)]

    def make(
        self, messages: Sequence[Json], tools: Sequence[Json], owner: str, views: Views
    ) -> Iterator[None]:
        """Add views to the given list: kept ones at once, then new ones in slices, of the newest texts first.

        messages, tools: as chat templates expect them. owner: only views made for the same owner are reused.
        """
        missing: list[tuple[bytes, Make]] = []
        room_tokens = MAX_TOKENS
        for seed, make in self._works(messages, tools):
            key = hashlib.blake2b(f"{owner}\0{seed}".encode(errors="surrogatepass"), digest_size=16).digest()
            if (kept := self._kept.get(key)) is None:
                missing.append((key, make))
            elif (room_tokens := room_tokens - _count(kept)) >= 0:
                views += kept
        for key, make in missing:
            yield
            made: Views = []
            yield from make(made)
            self._kept.put(key, made)
            if (room_tokens := room_tokens - _count(made)) < 0:
                return
            views += made

    def _works(self, messages: Sequence[Json], tools: Sequence[Json]) -> Iterator[tuple[str, Make]]:
        """Yield the key of each group of views, and the function that makes the group."""
        arguments = self._arguments if tools else AS_IT_IS
        patches = spoken_patches(messages, tools, arguments)
        yield to_json(tools).decode(), partial(self._make_frames, tools, arguments)
        yield f"{patches}", partial(self._make_forms, [*patch_forms(patches)])
        for text, wanted in texts_of(messages, arguments, patches):
            yield f"{wanted}\0{text}", partial(self._make_views, text, wanted)

    def _make_views(self, text: str, wanted: Wanted, made: Views) -> Iterator[None]:
        parts: list[Sequence[str]] = []
        plain: list[str] = []
        for lines in _cut_lines(text):
            shown = read_shapes(lines)
            parts.append([*wanted.write(shown)])
            plain.append(shown.plain)
            yield
        for written in map("".join, zip(*parts, strict=True)):
            view = array("I")
            for chunk in _chunks(written):
                view.extend(self._engine.tokenizer.encode_answer(chunk))
                yield
            if view:
                made.append(view)
        for form in wanted.patches:
            yield from self._make_lines("".join(plain), form, made)

    def _make_lines(self, text: str, form: ArgumentForm, made: Views) -> Iterator[None]:
        """Add the lines of a text as patches have them, but for those that are longer than a slice."""
        encode = self._engine.tokenizer.encode_answer
        texts, ends = (array("I"), array("I"), array("I")), (array("I"), array("I"), array("I"))
        num_characters = 0
        for line in text.removesuffix("\n").split("\n"):
            if len(line) > SLICE_CHARACTERS:
                continue
            for sign, ids, stops in zip(SIGNS, texts, ends, strict=True):
                ids.extend(encode(form.write(f"{sign}{line}\n")))
                stops.append(len(ids))
            num_characters += LINE_CHARACTERS + len(line)
            if num_characters > SLICE_CHARACTERS:
                num_characters = 0
                yield
        made.append(SignedLines(*texts, ends))

    def _answered(self, ids: Sequence[int]) -> tuple[int, ...]:
        ends = self._engine.tokenizer.eos_ids
        return tuple(takewhile(lambda token: token not in ends, ids))

    def _make_joints(self, fixed: str, joints: dict[int, tuple[int, ...]]) -> Iterator[None]:
        """Add those of what is fixed behind a value; see Frame.joints."""
        tokenizer = self._engine.tokenizer
        for number, end in enumerate((*VALUE_ENDS, *LINE_ENDS) if fixed.startswith("\n") else VALUE_ENDS):
            joined = tokenizer.encode_answer(end + fixed)
            if len(tokenizer.decode(joined[:1])) > len(end):
                last, *more = tokenizer.encode_answer(end)
                if not more:
                    joints[last] = self._answered(joined)
            if number % SLICE_ENDS == 0:
                yield

    def _make_frames(self, tools: Sequence[Json], arguments: ArgumentForm, made: Views) -> Iterator[None]:
        forms = [*block_forms(arguments)]
        if self._engine.tokenizer.markers.is_harmony:
            forms.append(HARMONY_REASONING)
        for tool in tools:
            # Not every template shows calls.
            with contextlib.suppress(ValueError):
                forms += call_forms(tool, self._write_call, arguments)
            yield
        yield from self._make_forms(forms, made)

    def _make_forms(self, forms: Sequence[Form], made: Views) -> Iterator[None]:
        tokenizer = self._engine.tokenizer
        known: dict[str, dict[int, tuple[int, ...]]] = {}
        for fixed, copied in forms:
            for text in fixed[1:]:
                if text not in known:
                    known[text] = {}
                    yield from self._make_joints(text, known[text])
            # A space before a value is one with its first word.
            ids = tuple(self._answered(tokenizer.encode_answer(text.rstrip(" "))) for text in fixed)
            made.append(Frame(ids, copied, tuple(known[text] for text in fixed[1:])))
        yield


class PromptViews:
    """Makes the views of a model's conversations, on the threads of the executor.

    making: the tasks of all models that are making views.
    max_pending: maximum number of them. draft_type: the draft type of requests that name none.
    """

    def __init__(
        self,
        engine: "GeneratingEngine",
        executor: Executor,
        making: set[asyncio.Task[None]],
        max_pending: int,
        draft_type: DraftType,
    ) -> None:
        self._background, self._making = executor.background, making
        self._max_pending, self._draft_type = max_pending, draft_type
        self._maker = ViewMaker(engine, MAX_VIEW_BYTES)

    def begin(self, body: ChatRequest, owner: str) -> tuple[Views, Iterator[None] | None]:
        """Return an empty list of views, and the slices of work that fill it.

        There are no slices if no drafter looks in views, or if those of max_pending conversations are being
        made. owner: see ViewMaker.make().
        """
        views: Views = []
        looks_up = (body.draft.type or self._draft_type) in ("auto", "suffix") and body.draft.max_tokens != 0
        if not looks_up or len(self._making) >= self._max_pending:
            return views, None

        def slices() -> Iterator[None]:
            yield from self._maker.make(*shown(body), owner, views)

        return views, slices()

    def start(self, client: str, slices: Iterator[None]) -> Callable[[], None]:
        """Do the first slice, which finds what was kept from earlier turns; return what does the others.

        Call that once the first token has come, which it would delay, and both on the event loop.
        """
        first = self._run(self._make(client, slices, is_first=True))

        async def make_others() -> None:
            await asyncio.wait({first})
            await self._make(client, slices, is_first=False)

        def start_others() -> None:
            self._run(make_others())

        return start_others

    def _run(self, making: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(making)
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        return task

    async def _make(self, client: str, slices: Iterator[None], *, is_first: bool) -> None:
        """Make views slice by slice. An answer needs none, so a fault is only logged."""
        try:
            work = partial(next, slices, True)
            while await self._background.run(client, work) is None and not is_first:
                pass
        except Exception:
            log.error("the views of a conversation cannot be made", exc_info=True)


def _count(views: Sequence[View]) -> int:
    """Count the tokens of views, and something for what holds them."""
    return sum(16 + _count_one(view) for view in views)


def _count_one(view: View) -> int:
    if isinstance(view, SignedLines):
        return sum(map(len, (view.kept, view.removed, view.added, *view.ends)))
    if not isinstance(view, Frame):
        return len(view)
    joined = (tokens for joints in view.joints for tokens in joints.values())
    return sum(map(len, (*view.fixed, *joined)))


def _cut_lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        most = start + MAX_SLICE_CHARACTERS
        end = text.find("\n", start + SLICE_CHARACTERS, most) + 1 or min(most, len(text))
        end = _after_lines(text, start, end)
        yield text[start:end]
        start = end


def _after_lines(text: str, start: int, end: int) -> int:
    """Return where the next SLICE_LINES lines end, at most end."""
    for _ in range(SLICE_LINES):
        if not (start := text.find("\n", start, end) + 1):
            return end
    return start


def _chunks(text: str) -> Iterator[str]:
    """Cut a text before words within lines, where tokenizers cut it too."""
    start = 0
    while start < len(text):
        most = start + MAX_SLICE_CHARACTERS
        match = _BEFORE_WORD.search(text, start + SLICE_CHARACTERS, most)
        end = match.start() if match else min(most, len(text))
        yield text[start:end]
        start = end
