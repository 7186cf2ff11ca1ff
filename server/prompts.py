"""Text to token ids, on a thread of its own: the tokenizer takes one caller, the event loop must not wait."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from server.engine_face import EngineFace
from server.errors import BadRequestError
from server.orders import check_ids
from server.schemas import ChatRequest, CompletionRequest

TokenIds = tuple[int, ...]


class PromptEncoder:
    """Renders chat templates and encodes prompts."""

    def __init__(self, engine: EngineFace) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def encode_chat(self, body: ChatRequest) -> TokenIds:
        """Token ids of a conversation, up to where the answer begins. Raises BadRequestError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._render, body)

    async def encode_prompts(self, body: CompletionRequest) -> list[TokenIds]:
        """Token ids of each prompt. Raises BadRequestError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode_all, body.prompt)

    def close(self) -> None:
        """End the thread; what still waits for it is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _render(self, body: ChatRequest) -> TokenIds:
        messages = [message.for_template() for message in body.messages]
        try:
            rendered = self._engine.tokenizer.render_chat(messages, None, body.chat_template_kwargs)
        # TemplateError is one; naming it would import MLX.
        except ValueError as fault:
            raise BadRequestError(f"{fault}", param="messages", code="template_error") from fault
        return tuple(rendered)

    def _encode_all(self, prompts: Sequence[str | list[int]]) -> list[TokenIds]:
        encoded: list[TokenIds] = []
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                encoded.append(tuple(self._engine.tokenizer.encode(prompt)))
            else:
                check_ids(prompt, "prompt" if len(prompts) == 1 else f"prompt[{index}]", self._engine.info)
                encoded.append(tuple(prompt))
        return encoded
