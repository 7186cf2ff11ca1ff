"""Where system text and tools end in a prompt is found in its ids, whatever the template writes there."""

from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.text.templates.chat_template import MessageOpenings, find_openings
from reprise.engine.text.tokenizer import Tokenizer
from tests.engine.support import VOCAB_SIZE
from tests.engine.text.templates.test_chat_template import FOLDER

RULES = "Be short. Hi there means hello.\nUse the tools."
TURNS = [
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Hi there"},
]


def tokenizer_of(template: str) -> Tokenizer:
    wrapped = load_tokenizer(Path(BUNDLED_MODEL))
    wrapped.chat_template = (FOLDER / f"{template}.jinja").read_text()
    return Tokenizer(wrapped, VOCAB_SIZE)


@pytest.mark.parametrize(
    "said", ["Hi there", "Hi", "Look at part 12.\n\n" * 30], ids=["repeated", "short", "long"]
)
@pytest.mark.parametrize("template", ["deepseek", "drops", "gemma2", "gemma3", "llama3", "qwen35", "smol"])
def test_the_head_ends_where_another_first_message_would_begin(template: str, said: str) -> None:
    tokenizer = tokenizer_of(template)

    def prompt(text: str) -> list[int]:
        head = [{"role": "system", "content": RULES}, {"role": "user", "content": text}]
        return tokenizer.render_chat([*head, *TURNS])

    ids, other = prompt(said), prompt("What is it?")
    shared = next(at for at, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b)
    found = tokenizer.find_head_end(ids, said)
    # Before the marker of the user's message, or the white space after the system text.
    assert shared - 4 <= found <= shared
    assert tokenizer.find_head_end(other, "What is it?") == found


def test_a_template_without_control_tokens_or_that_fails_has_no_head() -> None:
    mistral = tokenizer_of("mistral")
    ids = mistral.render_chat([{"role": "user", "content": "Hi there"}])
    assert mistral.find_head_end(ids, "Hi there") == 0

    def fail(*_: Any) -> list[int]:
        raise ValueError("no")

    assert find_openings(fail, frozenset()) == MessageOpenings()
