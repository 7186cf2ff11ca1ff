"""The strings with which a model marks reasoning, tool calls and fill-in-the-middle.

Plain data without MLX, so that the server can import it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

HARMONY = "harmony"
"""The format of gpt-oss: channels for reasoning, tool calls and content."""
PREAMBLE = "\ufdd4"
"""Stands around words before a call of gpt-oss, in a message of the user before it: its template would show
them as reasoning, which it drops once an answer follows. Unicode keeps it from ever being a character."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A string that begins or ends a section of the answer. tokens: its ids, at least one."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers that one model writes around reasoning and tool calls; None for those it does not have.

    call_end: None, even if call_start is set, where a tool call extends to the end of the answer.
    separators: markers around content, not part of it.
    inner: special tokens that the format of tool calls uses between the markers.
    call_format: mlx-lm's name for the format of tool calls, such as json_tools, or one of tokenizer.py.
    call_gap: whitespace that the chat template writes between content and a call after it.
    thought_gap: whitespace that it writes before and after a thought; None if it trims thoughts itself, or
        shows none.
    thinking_switches: variables of the chat template that switch an answer's thinking, or say how much.
    is_generic: the chat template has no tools or no known call format, so tools are described in the system
        text (templates/fit.py).
    """

    think_start: Marker | None = None
    think_end: Marker | None = None
    call_start: Marker | None = None
    call_end: Marker | None = None
    separators: tuple[Marker, ...] = ()
    inner: tuple[Marker, ...] = ()
    call_format: str = ""
    call_gap: str = ""
    is_generic: bool = False
    thought_gap: tuple[str, str] | None = None
    thinking_switches: tuple[str, ...] = ()

    @property
    def can_think(self) -> bool:
        """Whether the model separates reasoning from content."""
        return self.think_end is not None

    @property
    def can_call(self) -> bool:
        """Whether the model separates tool calls from content."""
        return self.call_start is not None

    @property
    def format_name(self) -> str | None:
        """The name of the format of tool calls, for people; None if the model has none."""
        if not self.can_call:
            return None
        return "generic" if self.is_generic else self.call_format

    @property
    def is_harmony(self) -> bool:
        """Whether every part of the answer is a message in a channel of its own, as gpt-oss writes it."""
        return self.call_format == HARMONY

    @property
    def is_addressed(self) -> bool:
        """Whether every part of the answer is a message with a recipient, as Muse Spark writes answers."""
        return self.call_format == "muse_spark" and len(self.inner) == 3

    @property
    def is_in_blocks(self) -> bool:
        """Whether content stands between markers of its own, as reasoning and tool calls do (Kimi K3)."""
        return self.call_format == "kimi_k3" and self.can_think and len(self.separators) == 3

    @property
    def outer(self) -> tuple[Marker, ...]:
        """The markers outside of tool calls."""
        some = (self.think_start, self.think_end, self.call_start, self.call_end, *self.separators)
        return tuple(marker for marker in some if marker is not None)

    @property
    def all(self) -> tuple[Marker, ...]:
        """All markers of the model."""
        return (*self.outer, *self.inner)

    def count_reasoning_tokens(self, answer: Sequence[int], is_open: bool, num_blocks: int) -> int:
        """Count the tokens of an answer that are reasoning, markers included.

        is_open: whether the prompt ends inside the first block of reasoning.
        num_blocks: blocks of reasoning in the answer; markers after them are ordinary text.
        """
        count, begun = 0, 0 if is_open else None
        for end in range(1, len(answer) + 1):
            if num_blocks < 1:
                break
            marker = self.think_start if begun is None else self.think_end
            if marker is None or answer[end - 1] != marker.tokens[-1]:
                continue
            if not ends_with(answer, marker.tokens, end):
                continue
            if begun is None:
                begun = end - len(marker.tokens)
            else:
                count, begun = count + end - begun, None
                num_blocks -= 1
        return count if begun is None or num_blocks < 1 else count + len(answer) - begun


def ends_with(tokens: Sequence[int], ending: Sequence[int], end: int | None = None) -> bool:
    """Return whether tokens[:end] ends with ending. ending: at least one token. end: None for all tokens."""
    end = len(tokens) if end is None else end
    return end >= len(ending) and tuple(tokens[end - len(ending) : end]) == tuple(ending)


TokenToId = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Fill-in-the-middle tokens: before the two given texts, and before the answer.

    middle: None if no token stands before the answer. is_suffix_first: whether the text after the gap comes
        first. file: the token before the name of each further file; None if the model takes no further files.
    ends: tokens that end the answer, beside the model's end-of-answer tokens.
    """

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool = False
    file: int | None = None
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Family:
    prefix: str
    suffix: str
    middle: str | None
    is_suffix_first: bool = False
    file: str = ""
    ends: tuple[str, ...] = ()


_FAMILIES = (
    # Qwen, CodeGemma, whose separator of files has another name, and others.
    _Family(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        file="<|file_sep|>",
        ends=("<|fim_pad|>", "<|repo_name|>"),
    ),
    _Family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ends=("<|file_separator|>",)),
    # StarCoder and Granite.
    _Family(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", file="<file_sep>", ends=("<fim_pad>", "<repo_name>")
    ),
    _Family("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>",)),
    _Family("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    _Family("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", is_suffix_first=True),
    _Family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama.
    _Family("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # Codestral.
    _Family("[PREFIX]", "[SUFFIX]", None, is_suffix_first=True),
)


def find_fim(token_to_id: TokenToId) -> FimTokens | None:
    """Return a vocabulary's fill-in-the-middle tokens, of the best-fitting family; None if it has none."""
    found = [tokens for family in _FAMILIES if (tokens := _tokens_of(family, token_to_id)) is not None]
    return max(found, key=lambda tokens: (tokens.file is not None, len(tokens.ends)), default=None)


def _tokens_of(family: _Family, token_to_id: TokenToId) -> FimTokens | None:
    prefix, suffix = token_to_id(family.prefix), token_to_id(family.suffix)
    middle = None if family.middle is None else token_to_id(family.middle)
    if prefix is None or suffix is None or (middle is None and family.middle is not None):
        return None
    file = token_to_id(family.file) if family.file else None
    others = (*map(token_to_id, family.ends), file, prefix, suffix, middle)
    ends = tuple(token for token in others if token is not None)
    return FimTokens(prefix, suffix, middle, family.is_suffix_first, file, ends)
