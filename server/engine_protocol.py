"""The interfaces through which the server uses the engine and its tokenizer.

They stand in for the real classes, which import MLX; tests implement them with a fake engine.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from config.settings import Settings
from engine.foreign.tool_calls import WrittenCall
from engine.interface.embeddings import EmbeddingRequest
from engine.interface.events import EmbeddingSink, Sink
from engine.interface.images import ImageProcessor
from engine.interface.models import ModelEntry, ModelInfo
from engine.interface.request import GenerationRequest, Grammar, PromptEnd
from engine.interface.status import EngineCounts, EngineStatus
from engine.text.fim import FimTokens
from engine.text.markers import Markers


class TokenizerProtocol(Protocol):
    """Converts between text and tokens. Called on one thread, except where a method says otherwise."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""

    @property
    def longest_token(self) -> int:
        """The characters of the longest token, so that n characters are at least n / longest_token tokens."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""

    @property
    def fim(self) -> FimTokens | None:
        """The tokens with which the model is asked to fill in text; None if it has none."""

    @property
    def markers(self) -> Markers:
        """The strings with which the model marks reasoning and tool calls."""

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends inside reasoning, so that the answer begins with it."""

    def find_head_end(self, prompt: Sequence[int], text: str) -> int:
        """Return where system text and tools end in a prompt; 0 if that is not known.

        text: what the user says first.
        """

    def parse_calls(self, text: str, tools: bytes) -> list[WrittenCall]:
        """Parse the text between tool call markers; return no calls if it is malformed.

        On any thread. Blocks. tools: a JSON array. Raises ParseLimitError if it takes too much to parse.
        """

    @property
    def description(self) -> dict[str, str | None]:
        """The tokenizer's class, its special tokens by name, and the chat template."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of text, with the special tokens that a prompt begins or ends with."""

    def encode_answer(self, text: str) -> list[int]:
        """Return the token ids of text as part of an answer, without a prompt's special tokens."""

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token, which may be only part of a character."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
        end: PromptEnd = "answer",
        processor: ImageProcessor | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation up to the answer or another end.

        processor: of images, whose marks (engine/text/templates/image_parts.py) become one placeholder each.
        Raises ValueError if that fails.
        """


class EngineProtocol(Protocol):
    """The engine of a model. All methods may be called on any thread.

    settings: of this model. attached: what its users keep beside it; it ends with the engine.
    """

    settings: Settings
    attached: dict[str, Any]

    @property
    def info(self) -> ModelInfo:
        """The model, once it was loaded."""

    @property
    def tokenizer(self) -> TokenizerProtocol:
        """The model's tokenizer, once it was loaded."""

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a sequence, whose events go to the sink. Raises EngineError if it is refused."""

    def compile_grammar(self, grammar: Grammar) -> Grammar:
        """Return the grammar as compiled, for requests. Raises GrammarError if it cannot be used."""

    def cancel(self, request_id: str) -> None:
        """End a sequence. Unknown ids are ignored."""

    def status(self) -> EngineStatus:
        """Return the engine's state and the numbers of running and waiting sequences."""


class EmbeddingEngineProtocol(Protocol):
    """The engine of a model that embeds or ranks. All methods may be called on any thread."""

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request, whose one event goes to the sink. Raises EngineError if it is refused."""

    def cancel(self, request_id: str) -> None:
        """End a request. Unknown ids are ignored."""


class ModelUseProtocol(Protocol):
    """A request's use of a loaded model. keep_s: how long to keep it afterwards; None as the settings say."""

    keep_s: float | None

    @property
    def engine(self) -> EngineProtocol:
        """The model's engine."""

    def end(self) -> None:
        """End the use, once."""


class ModelsProtocol(EngineProtocol, Protocol):
    """All models, one or many. As an engine it is the one that the server started with.

    is_fixed: whether there is one model from start to end, so that none is loaded or unloaded for requests.
    on_death: called with the reason, on the engine's thread, when the engine dies.
    """

    is_fixed: bool

    @property
    def first_name(self) -> str:
        """The name of the model that the server started with."""

    on_death: Callable[[str], None] | None

    def start(self, on_progress: Callable[[str, float], None] | None = None) -> None:
        """Load the first model; return when it is ready.

        on_progress: called with the current task, in words, and the share of it that is done, in [0, 1].
        """

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, let running sequences finish for up to drain_s seconds, then stop."""

    def counts(self) -> EngineCounts:
        """Return the counters of all models and the memory that MLX holds. Never blocks."""

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the counts of each model's prefix cache, empty if they are off. Never blocks.

        By "target" and "draft" or the models' names, then by the fields of PrefixStatus in
        engine/kv_cache/prefix_cache/trie.py.
        """

    def table_status(self) -> dict[str, Any]:
        """Return the counts of the shared n-gram table. Never blocks. Raises SharedTableError."""

    def table_reset(self) -> None:
        """Drop what drafters learned from finished requests, the n-gram table included.

        Waits for the engine's thread. Raises SharedTableError.
        """

    def table_save(self) -> str:
        """Write the n-gram table to --ngram-table-file and return a sentence about it.

        Waits for the engine's thread. Raises SharedTableError.
        """

    def table_load(self) -> str:
        """Read the n-gram table from --ngram-table-file and return a sentence about it.

        Waits for the engine's thread. Raises SharedTableError.
        """

    def entries(self) -> list[ModelEntry]:
        """Describe all models, the one that the server started with first. Blocks: it reads the disk."""

    def loaded_entries(self) -> list[ModelEntry]:
        """Describe the models that are or were loaded, or are waited for. Never blocks for long."""

    def find(self, name: str) -> ModelEntry | None:
        """Describe a model; None if there is none of that name. Blocks."""

    def use_loaded(self, name: str) -> ModelUseProtocol | None:
        """Return a use of a model that is loaded; None if it must be waited for. Never blocks for long."""

    def acquire(self, name: str) -> "Future[Any]":
        """Load a model for a request; the future has its ModelUseProtocol. Blocks, but not for the load.

        Raises ModelLoadError, as the future does.
        """

    def unload(self, name: str) -> "Future[None]":
        """Unload a model once its requests have ended. Blocks, but not for that. Raises ModelLoadError."""

    def pull(self, name: str, report: Callable[[int, int], None]) -> ModelEntry:
        """Download a model from the hub, which takes long, and describe it. Raises ModelLoadError.

        report: called on several threads with the bytes that are there, and those of the whole model.
        """
