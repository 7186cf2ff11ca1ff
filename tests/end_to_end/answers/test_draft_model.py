"""A draft model of another vocabulary, with the real server and the official SDK."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from reprise.bench.local_engine import LocalEngine
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.generating import setup
from reprise.engine.generating.setup import flat_costs
from reprise.server.app import create_app
from tests.end_to_end.conftest import serving, with_constant
from tests.server.openai_shapes import valid_chat, valid_timings
from tests.server.served import served

DRAFT_MODEL = str(BUNDLED_MODEL / "draft_polish")
ASKED = [
    "Hello! Who are you?",
    "Give it back as it is: Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 \U0001f600, na\u00efve?",
    "Rename a to first.\n\n```python\ndef add(a, b):\n    return a + b\n```",
]


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server whose draft model pays on every machine: all steps cost the same."""
    settings = Settings(
        served_model_name=("demo",), draft_model=DRAFT_MODEL, draft_type="draft-model"
    )  # fmt: skip
    monkeypatch.setattr(setup, "TRANSLATION_PREFIX_TOKENS", 3)
    with LocalEngine(settings, flat_costs()) as local, served(create_app(local.engine, settings)) as address:
        yield address


def _ask(address: str, content: str, draft: dict[str, str] | None, **fields: Any) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": content}],
            max_tokens=50,
            extra_body={"draft": draft} if draft else {},
            **fields,
        )
    valid_chat(answer.model_dump(exclude_unset=True))
    return answer


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
def test_it_changes_no_answer_and_its_drafts_are_counted(drafting: str, sampling: dict[str, Any]) -> None:
    translated = 0
    for content in ASKED:
        plain = _ask(drafting, content, {"type": "none"}, **sampling)
        assert "translation" not in plain.timings
        drafted = _ask(drafting, content, None, n=2, **sampling)
        assert drafted.choices[0].message.content == plain.choices[0].message.content
        told = valid_timings(drafted.timings).translation
        assert told
        assert told["strategy"] == "context"
        assert told["drafted"] == drafted.timings["draft_n"]
        translated += told["translated"]
    assert translated


def test_with_learned_costs_it_changes_no_answer(server_folder: Path) -> None:
    flags = ["--draft-model", DRAFT_MODEL, "--draft-type", "draft-model"]
    few = with_constant("reprise.engine.generating.setup.TRANSLATION_PREFIX_TOKENS", 3)
    with serving(server_folder, *flags, command=few) as (address, printed):
        for content in ASKED:
            plain = _ask(address, content, {"type": "none"}, temperature=0)
            drafted = _ask(address, content, None, temperature=0)
            assert drafted.choices[0].message.content == plain.choices[0].message.content
    # And the terminal says how drafts are translated.
    told = "".join(printed)
    assert "drafts are translated (context): " in told
    assert "draft_polish (translated: context)\n" in told
