"""Token ids of a turn's prompt, equal to what the server makes of the same request."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.workloads import Turn

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer


def render(
    tokenizer: "Tokenizer", messages: str | Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> tuple[int, ...]:
    """Return the token ids of a user message or a chat; of its plain text if there is no chat template.

    messages, tools: as chat templates take them, see Turn.for_template().
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode("\n\n".join(one.get("content") or "" for one in messages)))
    return tuple(tokenizer.render_chat(list(messages), list(tools) or None))


def render_turn(tokenizer: "Tokenizer", turn: Turn) -> tuple[int, ...]:
    """Return the token ids of a turn's prompt."""
    if turn.text is None:
        return render(tokenizer, turn.for_template(), turn.tools_for_template())
    whole, bare = tokenizer.encode(turn.text), tokenizer.encode_answer(turn.text)
    # The text of a recorded prompt already begins with the special tokens of a prompt.
    return tuple(bare if whole[1:] == bare and whole[:1] == bare[:1] else whole)
