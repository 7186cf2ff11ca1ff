"""Count the prompt tokens of agents' sessions that are read while the agent waits.

No model is needed: each prompt is rendered by the real template, and an ideal prefix cache holds all prompts
and answers so far, and what is read ahead, if every gap between turns is long enough for that.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np

from reprise.bench.experiment import Row
from reprise.bench.workloads.chats import Chat, Message, Turn
from reprise.config.settings import Settings
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.text.tokenizer import Tokenizer
from reprise.server.errors import BadRequestError
from reprise.server.generation.read_ahead import expected_prompts
from reprise.server.output.parts import ChoiceOutput, ToolCallPart
from reprise.server.prompt.encoder import encode_chat
from reprise.server.prompt.images import Seen
from reprise.server.requests.chat import ChatRequest

WAYS = ("lost", "returned", "ahead", "turn", "kept")
"""Thoughts are not sent back; they are; also the next prompt is read ahead; also the turn without its
thoughts; the template keeps all thoughts, by its switch."""


def read_rows(tokenizer: Tokenizer, chats: Iterable[Chat], show: Callable[[str], None]) -> list[Row]:
    """Return a row for each workload: of its chats, the mean number of tokens read after the first prompt.

    show: called with each chat's workload.
    """
    by_workload: dict[str, list[dict[str, int]]] = {}
    for chat in chats:
        show(f"reading {chat.workload}")
        if len(chat.turns) > 1:
            by_workload.setdefault(chat.workload, []).append(_Session(tokenizer).read(chat))
    return [
        {"workload": workload, "chats": len(found)}
        | {key: sum(one[key] for one in found) / len(found) for key in found[0]}
        for workload, found in by_workload.items()
    ]


class _Session:
    """Counts what the prompts of one chat read, in each of WAYS."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._engine: Any = SimpleNamespace(tokenizer=tokenizer, info=SimpleNamespace(context_tokens=2**40))
        self._held: dict[str, list[TextKey]] = {way: [] for way in WAYS}
        self._read: dict[str, list[int]] = {way: [] for way in WAYS}

    def read(self, chat: Chat) -> dict[str, int]:
        """Return the counts of a chat. Turns that the template refuses are left out."""
        for turn in chat.turns:
            with suppress(BadRequestError):
                self._take(turn)
        counts = {way: sum(read[1:]) for way, read in self._read.items() if read}
        return {"turns": len(self._read["lost"]), "first": self._read["lost"][0], **counts}

    def _take(self, turn: Turn) -> None:
        answer = {"role": "assistant", **(turn.answer or {})}
        thoughtless = [{**one, "reasoning_content": ""} for one in turn.messages]
        body = self._ask(("returned", "ahead", "turn"), turn, turn.messages, answer)
        self._ask(("lost",), turn, thoughtless, answer)
        if switch := self._tokenizer.thought_switch:
            self._ask(("kept",), turn, turn.messages, answer, chat_template_kwargs=switch)
        calls = [
            ToolCallPart(call["id"], call["function"]["name"], json.dumps(call["function"]["arguments"]))
            for call in answer.get("tool_calls") or ()
        ]
        thought = str(answer.get("reasoning_content") or "")
        output = ChoiceOutput(text=answer.get("content") or "", reasoning=thought, tool_calls=calls)
        # The next prompt, and the turn without its thoughts. On a battery too.
        given = Settings(read_ahead="turn"), self._engine, body, Seen(body.messages), output
        expected = [TextKey.of(one.prompt) for one in expected_prompts(*given)]
        self._held["ahead"] += expected[:1]
        self._held["turn"] += expected

    def _ask(
        self, ways: Sequence[str], turn: Turn, messages: Sequence[Message], answer: Message, **fields: Any
    ) -> ChatRequest:
        """Count what a prompt reads, and hold it with the answer; return its request. fields: more of it."""
        fields["tools"] = list(turn.tools)
        body = ChatRequest.model_validate({"messages": list(messages), **fields})
        prompt = self._render(body)
        answered = {"messages": [*messages, answer], "add_generation_prompt": False, **fields}
        # As the template shows it while nothing follows.
        written = self._render(ChatRequest.model_validate(answered))
        thought = str(answer.get("reasoning_content") or "").strip()
        if thought not in self._tokenizer.decode(written.ids[prompt.count_equal(written) :].tolist()):
            # The model wrote it, but the template does not show it.
            ids = np.asarray(self._tokenizer.encode_answer(thought), np.int32)
            written = TextKey.of(np.concatenate([prompt.ids, ids]))
        for way in ways:
            held = max((prompt.count_equal(one) for one in self._held[way]), default=0)
            self._read[way].append(len(prompt) - held)
            self._held[way] += [prompt, written]
        return body

    def _render(self, body: ChatRequest) -> TextKey:
        return TextKey.of(encode_chat(self._engine, body, Seen(body.messages)).tokens)
