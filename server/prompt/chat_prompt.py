"""The prompt of a conversation, and the views that are made of the conversation's texts."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request

from reprise.engine.interface.images import PromptImage
from reprise.engine.interface.request import DraftType, View
from reprise.server.engine_types import ModelEngine
from reprise.server.executor import Lane, client_of
from reprise.server.http.access import key_digest
from reprise.server.prompt.views import ViewMaker, Views
from reprise.server.requests.chat import ChatRequest

log = logging.getLogger("reprise.server")

TokenIds = tuple[int, ...]
Json = dict[str, Any]
MAX_VIEW_BYTES = 16 << 20
"""Maximum bytes of views that are kept for later turns: four million tokens."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered and encoded conversation, up to where the model's output starts.

    prediction: token ids of the output that the client predicts; often none.
    is_thinking: the prompt has already opened the model's reasoning.
    num_dropped: how many of the oldest messages were left out, as the request allows.
    make_views: makes the views that are still missing. The others: see GenerationRequest.
    """

    tokens: TokenIds
    prediction: TokenIds = ()
    is_thinking: bool = False
    num_dropped: int = 0
    head_tokens: int = 0
    views: Sequence[View] = ()
    make_views: Callable[[], None] | None = None
    images: tuple[PromptImage, ...] = ()


class PromptViews:
    """Makes the views of conversations on a thread of its own.

    max_pending: maximum number of conversations whose views are made at once.
    draft_type: the draft type of requests that name none.

    making: the tasks that are making views.
    """

    def __init__(self, engine: ModelEngine, max_pending: int, draft_type: DraftType) -> None:
        self._max_pending = max_pending
        self._draft_type = draft_type
        self._lane = Lane("views")
        self._maker = ViewMaker(engine, MAX_VIEW_BYTES)
        self.making: set[asyncio.Task[None]] = set()

    def add(
        self,
        prompt: ChatPrompt,
        request: Request,
        body: ChatRequest,
        messages: Sequence[Json],
        tools: Sequence[Json],
    ) -> ChatPrompt:
        """Return the prompt with a list of views, which soon has the views that were kept from earlier turns.

        The prompt's make_views() makes the others, and is to be called once the first token has come: before,
        on a busy processor, it would delay that token. The prompt stays without views if no drafter looks in
        them, or if the views of max_pending conversations are being made.
        """
        views: Views = []
        looks_up = (body.draft.type or self._draft_type) in ("auto", "suffix") and body.draft.max_tokens != 0
        if not looks_up or len(self.making) >= self._max_pending:
            return prompt
        slices = self._maker.make(messages, tools, key_digest(request), views)
        make = partial(self._make, client_of(request), slices)
        make(is_first=True)
        return replace(prompt, views=views, make_views=partial(make, is_first=False))

    def _make(self, client: str, slices: Iterator[None], is_first: bool) -> None:
        """Do the first slice of making views, or all others, on their thread."""
        task = asyncio.ensure_future(self._run_slices(client, slices, is_first))
        self.making.add(task)
        task.add_done_callback(self.making.discard)

    async def _run_slices(self, client: str, slices: Iterator[None], is_first: bool) -> None:
        """Make views slice by slice. An answer needs none, so a fault is only logged."""
        try:
            while await self._lane.run(client, partial(next, slices, True)) is None and not is_first:
                pass
        except Exception:
            log.error("the views of a conversation cannot be made", exc_info=True)

    def close(self) -> None:
        """Stop the thread and drop the jobs that still wait for it."""
        for task in self.making:
            task.cancel()
        self._lane.close()
