"""Encode prompts on threads: the event loop must not wait for them."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from reprise.config.settings import Settings
from reprise.engine.interface.errors import EngineError, UnbrokenTextError
from reprise.engine.interface.image_marks import before_images
from reprise.engine.interface.images import ImageProcessor
from reprise.engine.interface.request import PromptEnd
from reprise.engine.text.fim import FimTokens
from reprise.server.engine_types import ModelEngine
from reprise.server.errors import (
    BadRequestError,
    UnavailableError,
    from_engine,
    retry_after,
)
from reprise.server.executor import Lane, beside, client_of
from reprise.server.http.disconnects import wait_unless_gone
from reprise.server.prompt.chat_prompt import ChatPrompt, Json, PromptViews, TokenIds
from reprise.server.prompt.harmony import (
    to_harmony_arguments,
    to_harmony_messages,
    to_harmony_tools,
)
from reprise.server.prompt.images import ImageReader, Placed, Seen
from reprise.server.prompt.infill import Hole, encode_hole
from reprise.server.prompt.limits import check_token_ids, context_error
from reprise.server.prompt.truncation import fit, newest_turn
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.generation_fields import GenerationFields

LANES = (2**14, 2**18, sys.maxsize)
"""The most characters of the jobs of each thread, which take some 20 ms, 300 ms, or several seconds."""
TEXTS_AT_ONCE = 64
"""Texts of a request that are encoded before other clients come next."""
LIMIT_S = 60.0
"""Maximum time from a prompt's arrival until it is encoded."""
ResultT = TypeVar("ResultT")
MAX_TRUNCATED_CONTEXTS = 4
"""Maximum length of a prompt of which only the end is kept, in contexts: all of it has to be encoded."""


def _shown(body: ChatRequest) -> tuple[list[Json], list[Json], dict[str, int]]:
    """Return the messages and the tools that a template is given, and the characters of each."""
    messages = merge_leading_systems([message.for_template() for message in body.messages])
    tools = [tool.for_template() for tool in body.shown_tools]
    arguments = [call.arguments for message in body.messages for call in message.calls]
    num_characters = sum(len(message["content"]) for message in messages) + sum(map(_text_size, arguments))
    return messages, tools, {"messages": num_characters, "tools": _text_size(tools)}


def _text_size(value: Any) -> int:
    """Return how many characters JSON has at least, without writing it."""
    # Not to_json(): it would keep all other threads from running.
    size, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += len(one) + len('""')
        elif isinstance(one, dict):
            size += len("{}") + 2 * len(one) - bool(one)
            left += [*one, *one.values()]
        elif isinstance(one, list):
            size += len("[]") + len(one) - bool(one)
            left += one
        else:
            size += 1
    return size


def _result(ended: asyncio.Future[ResultT]) -> ResultT:
    try:
        return ended.result()
    except UnbrokenTextError as fault:
        raise BadRequestError(
            f"A text has more than {fault} characters without a place where this model's texts can be cut, "
            "such as a space between letters or a line break. Break it up, or shorten it.",
            code="unbroken_text",
        ) from None


def _num_contexts(body: GenerationFields) -> int:
    """Return how many contexts a prompt may be long."""
    return 1 if body.truncate_prompt_tokens is None else MAX_TRUNCATED_CONTEXTS


def merge_leading_systems(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the system messages at a conversation's head into one: many templates take only one."""
    num_first = next((i for i, one in enumerate(messages) if one["role"] != "system"), len(messages))
    if num_first < 2:
        return messages
    content = "\n\n".join(message["content"] for message in messages[:num_first])
    return [{**messages[0], "content": content}, *messages[num_first:]]


class PromptEncoder:
    """Renders chat templates and encodes prompts.

    Jobs are sorted by size into LANES, each with a thread that serves clients in rotation, so that no job
    waits for a much longer one. A job that has begun cannot be stopped, so text that is certainly too long
    for the context is refused before it is encoded.

    Every method may raise ClientGoneError if the client disconnects, TooBusyError if too many of the client's
    jobs wait, and UnavailableError if a job takes longer than LIMIT_S or the server stops.

    max_pending: maximum number of a client's requests that wait or are being encoded.
    settings: the model's settings.

    views: makes views, also off the event loop.
    """

    def __init__(self, engine: ModelEngine, max_pending: int, settings: Settings) -> None:
        self._engine = engine
        self._max_pending = max_pending
        self._num_pending: Counter[str] = Counter()
        self._lanes = {size: Lane(f"prompts-{size}") for size in LANES}
        self.views = PromptViews(engine, max_pending, settings.draft_type)
        self._images = ImageReader(settings, self.run)

    async def encode_chat(self, request: Request, body: ChatRequest) -> ChatPrompt:
        """Render and encode a conversation. Raises also BadRequestError."""
        vision = self._engine.info.vision
        seen = await self._images.read(request, body.messages, vision.processor if vision else None)
        given, body = body, body.model_copy(update={"messages": seen.messages})
        messages, tools, num_characters = await beside(request, partial(_shown, body))
        reserved = None
        if body.truncation == "auto":
            # Of a conversation that is too long only what may fit is encoded.
            room = self._engine.info.context_tokens // 4
            reserved = min(room, body.requested_max_tokens or room)
        else:
            self._check_size(num_characters["messages"], "messages", _num_contexts(body))
        predicted = body.prediction.content if body.prediction else ""
        self._check_size(len(predicted), "prediction")
        self._check_size(num_characters["tools"], "tools")
        prompt = await self._encode(
            request,
            sum(num_characters.values()) + len(predicted),
            self._encode_chat,
            body,
            messages,
            tools,
            reserved,
            seen,
        )
        if seen.pictures:
            messages, tools, _ = await beside(request, partial(_shown, given))
        return self.views.add(prompt, request, body, messages, tools)

    async def encode_prompts(self, request: Request, body: CompletionRequest) -> list[TokenIds]:
        """Return the token ids of each prompt. Raises also BadRequestError."""
        for prompt in body.prompt:
            if isinstance(prompt, str):
                self._check_size(len(prompt), "prompt", _num_contexts(body))
        tokenizer = self._engine.tokenizer
        encode = tokenizer.encode if body.add_special_tokens else tokenizer.encode_answer
        return await self._encode(request, sum(map(len, body.prompt)), self._encode_all, body.prompt, encode)

    async def encode_holes(
        self, request: Request, fim: FimTokens, holes: Sequence[Hole], body: CompletionRequest
    ) -> list[TokenIds]:
        """Return the prompt for each hole. Raises also BadRequestError."""
        sizes = [
            len(hole.before) + len(hole.after) + sum(len(name) + len(text) for name, text in hole.others)
            for hole in holes
        ]
        for size in sizes:
            self._check_size(size, "prompt")
        encode = partial(encode_hole, self._engine.tokenizer, fim, has_special=body.add_special_tokens)
        return await self._encode(request, sum(sizes), lambda: [encode(hole) for hole in holes])

    async def decode_prompts(self, request: Request, body: CompletionRequest) -> list[str]:
        """Return the text of each prompt, for a response that echoes it."""
        decode = self._engine.tokenizer.decode
        size = sum(map(len, body.prompt))
        return await self._encode(
            request,
            size,
            lambda: [prompt if isinstance(prompt, str) else decode(prompt) for prompt in body.prompt],
        )

    async def encode_text(self, request: Request, text: str, param: str, is_prompt: bool) -> TokenIds:
        """Return the token ids of a text. Raises also BadRequestError.

        is_prompt: whether to add the special tokens that prompts start or end with.
        """
        self._check_size(len(text), param)
        tokenizer = self._engine.tokenizer
        encode = tokenizer.encode if is_prompt else tokenizer.encode_answer
        return tuple(await self._encode(request, len(text), encode, text))

    async def encode_texts(self, request: Request, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of texts without special tokens."""
        encode, found = self._engine.tokenizer.encode_answer, list[TokenIds]()
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            found += await self._encode(request, sum(map(len, some)), self._encode_all, some, encode)
        return found

    async def decode(self, request: Request, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises also BadRequestError."""
        if len(tokens) > self._engine.info.context_tokens:
            raise context_error(len(tokens), "tokens", self._engine.info)
        if not tokens:
            return ""
        check_token_ids(tokens, "tokens", self._engine.info)
        return await self._encode(request, len(tokens), self._engine.tokenizer.decode, tokens)

    def close(self) -> None:
        """Stop the threads and drop the jobs that still wait for them."""
        for lane in self._lanes.values():
            lane.close()
        self.views.close()
        self._images.close()

    async def _encode(
        self, request: Request, size: int, job: Callable[..., ResultT], *arguments: object
    ) -> ResultT:
        """Run a job in the lane of its size, the characters or tokens that it reads. Raises as run()."""
        lane = next(lane for limit, lane in self._lanes.items() if size <= limit)
        try:
            return await self.run(request, lane, job, *arguments)
        finally:
            if size > LANES[1]:
                request.app.state.service.bodies.trim_soon()

    async def run(
        self, request: Request, lane: Lane, job: Callable[..., ResultT], *arguments: object
    ) -> ResultT:
        """Run a job on a lane.

        Raises ClientGoneError if the client disconnects first, TooBusyError if too many of its jobs are
        waiting, and UnavailableError if it takes longer than LIMIT_S or the server stops.
        """
        client = client_of(request)
        if self._num_pending[client] >= self._max_pending:
            raise from_engine(EngineError("queue_full", "Too many prompts are waiting; try again later."))
        self._num_pending[client] += 1
        running = asyncio.ensure_future(lane.run(client, partial(job, *arguments)))
        try:
            await wait_unless_gone(running, request.receive, LIMIT_S)
            if running.done():
                if running.cancelled():
                    raise from_engine(EngineError("draining", "The server is shutting down."))
                return _result(running)
            raise UnavailableError(
                f"The prompt was not encoded within {LIMIT_S:g} s. Try again later, or shorten it.",
                code="prompt_timeout",
                headers=retry_after(LIMIT_S),
            )
        finally:
            running.cancel()
            self._num_pending[client] -= 1
            # The counter keeps no client that has left.
            self._num_pending += Counter()

    def _check_size(self, num_characters: int, param: str, num_contexts: int = 1) -> None:
        """Refuse text that certainly has more tokens than so many contexts."""
        info = self._engine.info
        min_tokens = num_characters // self._engine.tokenizer.longest_token
        if min_tokens >= num_contexts * info.context_tokens:
            raise context_error(min_tokens, param, info, is_lower_bound=True)

    def _encode_chat(
        self,
        body: ChatRequest,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        reserved_tokens: int | None,
        seen: Seen,
    ) -> ChatPrompt:
        """Render and encode. messages, tools: as the template gets them.

        reserved_tokens: for the answer if turns may be left out; None if none may. seen: places the images.
        """
        is_harmony, shown_tools = self._engine.tokenizer.markers.is_harmony, tools
        arguments, predicted = body.template_arguments, body.prediction.content if body.prediction else ""
        if is_harmony:
            shown_tools, arguments = to_harmony_tools(tools), to_harmony_arguments(arguments)

        # By the prompt's identity: of several conversations that are encoded, one is kept.
        images: dict[int, Placed] = {}

        def encode(some: Sequence[dict[str, Any]]) -> TokenIds:
            shown = to_harmony_messages(some) if is_harmony else list(some)
            ids = self._render(shown, shown_tools, arguments, body.prompt_end, seen.processor)
            placed = seen.place(ids, some)
            images[id(placed.tokens)] = placed
            return placed.tokens

        prediction = tuple(self._engine.tokenizer.encode_answer(predicted)) if predicted else ()
        if len(prediction) >= self._engine.info.context_tokens:
            raise context_error(len(prediction), "prediction", self._engine.info)
        num_dropped = 0
        if reserved_tokens is None:
            tokens = encode(messages)
        else:
            # The newest turn may be too long to encode.
            self._check_size(sum(len(one["content"] or "") for one in newest_turn(messages)), "messages")
            tokens, num_dropped = fit(messages, self._engine.info.context_tokens, reserved_tokens, encode)
        is_thinking = self._engine.tokenizer.opens_thinking(tokens)
        said = next((one["content"] for one in messages if one["role"] == "user"), None)
        head_tokens = self._engine.tokenizer.find_head_end(tokens, before_images(said or ""))
        return ChatPrompt(
            tokens,
            prediction,
            is_thinking,
            num_dropped,
            head_tokens,
            images=images[id(tokens)].images,
        )

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        arguments: dict[str, Any],
        end: PromptEnd,
        processor: ImageProcessor | None,
    ) -> TokenIds:
        # A tokenizer of a model that sees nothing need not know of images.
        more = {} if processor is None else {"processor": processor}
        try:
            # None, not an empty list: some templates treat an empty list as a request with tools.
            rendered = self._engine.tokenizer.render_chat(
                messages, tools or None, arguments or None, end, **more
            )
        # TemplateError is a ValueError; importing it would import MLX.
        except ValueError as fault:
            raise BadRequestError(f"{fault}", param="messages", code="template_error") from fault
        return tuple(rendered)

    def _encode_all(
        self, prompts: Sequence[str | list[int]], encode: Callable[[str], list[int]]
    ) -> list[TokenIds]:
        encoded: list[TokenIds] = []
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                encoded.append(tuple(encode(prompt)))
            else:
                check_token_ids(
                    prompt, "prompt" if len(prompts) == 1 else f"prompt[{index}]", self._engine.info
                )
                encoded.append(tuple(prompt))
        return encoded
