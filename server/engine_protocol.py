"""What the server needs of an engine and of its tokenizer. Any object of this shape will do.

Naming the real classes would import MLX; so tests serve a fake one, and start in no time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.model.markers import Markers
from engine.model.tool_calls import WrittenCall
from engine.request import EngineCounts, EngineStatus, GenerationRequest, Grammar, ModelInfo, Sink


class TokenizerProtocol(Protocol):
    """Text to tokens; called on one thread."""

    @property
    def has_chat_template(self) -> bool:
        """Whether chat messages can be rendered at all."""

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: n characters make at least n / longest_token tokens."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def markers(self) -> Markers:
        """How the model marks thinking and calls."""

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt has begun the model's thinking."""

    def parse_calls(self, text: str, tools: list[dict[str, Any]]) -> list[WrittenCall]:
        """The calls in what stands between the markers; none if it cannot be read. On any thread."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of text as a model would say it: without what only a prompt begins or ends with."""

    def piece(self, token: int) -> bytes:
        """A token's own bytes, which may be part of a character."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation up to the answer; raises a ValueError that says why not."""


class EngineProtocol(Protocol):
    """The engine, as any thread may call it."""

    on_death: Callable[[str], None] | None

    @property
    def info(self) -> ModelInfo:
        """The loaded model; only after start()."""

    @property
    def tokenizer(self) -> TokenizerProtocol:
        """Its tokenizer; only after start()."""

    def start(self, on_progress: Callable[[str, float], None] | None = None) -> None:
        """Load the model; return when it is ready.

        on_progress: takes what is being done, in words, and the share of it that is done, in [0, 1].
        """

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Generate a sequence; raises EngineError if it cannot be taken."""

    def check_grammar(self, grammar: Grammar) -> None:
        """Compile a grammar for its first use; raises GrammarError if it cannot be used. On any thread."""

    def cancel(self, request_id: str) -> None:
        """End a sequence; unknown ids are ignored."""

    def status(self) -> EngineStatus:
        """What it is doing."""

    def counts(self) -> EngineCounts:
        """What it has counted, and what memory it holds; never waits."""

    def prefix_status(self) -> dict[str, int]:
        """Counts of the prefix cache, by the names of PrefixStatus; empty without one. Never waits."""

    def table_status(self) -> dict[str, Any]:
        """Counts of the n-gram table that requests share; never waits. Raises SharedTableError."""

    def table_reset(self) -> None:
        """Forget it; waits for the engine's thread, as the next two. Raises SharedTableError."""

    def table_save(self) -> str:
        """Write it to the file of the settings; returns what was done. Raises SharedTableError."""

    def table_load(self) -> str:
        """Read it from there; returns what was done. Raises SharedTableError."""

    def stop(self, drain_s: float) -> None:
        """Take nothing new, let running sequences finish for drain_s, then end."""
