"""A draft model of another vocabulary, with the real server and the official SDK."""

import httpx
import openai
import pytest

from config.settings import BUNDLED_MODEL
from tests.end_to_end.conftest import serving
from tests.server.openai_shapes import valid_chat, valid_timings

ASKED = [
    "Hello! Who are you?",
    "Give it back as it is: Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 \U0001f600, na\u00efve?",
    "Rename a to first.\n\n```python\ndef add(a, b):\n    return a + b\n```",
]


# A server for each test: once it has learned that its draft model does not pay, it stops using it.
@pytest.fixture
def started(server_folder):
    flags = ["--draft-model", str(BUNDLED_MODEL / "draft_polish"), "--draft-type", "draft-model"]
    with serving(server_folder, *flags, "--translation-prefix-tokens", "3") as (address, printed):
        yield address, printed


@pytest.fixture
def client(started):
    with openai.OpenAI(base_url=f"{started[0]}/v1", api_key="none", max_retries=0) as made:
        yield made


def _ask(client, content, draft, **fields):
    messages = [{"role": "user", "content": content}]
    body = {"draft": draft} if draft else {}
    return client.chat.completions.create(
        model="demo", messages=messages, max_tokens=50, extra_body=body, **fields
    )


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
def test_it_changes_no_answer_and_its_drafts_are_counted(started, client, sampling):
    translated = 0
    for content in ASKED:
        plain = _ask(client, content, {"type": "none"}, **sampling)
        assert "translation" not in plain.timings
        drafted = _ask(client, content, None, n=2, **sampling)
        valid_chat(drafted.model_dump(exclude_unset=True))
        assert drafted.choices[0].message.content == plain.choices[0].message.content
        if told := valid_timings(drafted.timings).translation:
            assert told["strategy"] == "context"
            assert told["drafted"] == drafted.timings["draft_n"]
            translated += told["translated"]
    assert translated
    assert 'reprise_draft_translations_total{outcome="translated",strategy="context"}' in (
        httpx.get(f"{started[0]}/metrics").text
    )
    # And the terminal says how drafts are translated.
    told = "".join(started[1])
    assert "drafts are translated (context): " in told
    assert "draft_polish (translated: context), step costs from" in told
