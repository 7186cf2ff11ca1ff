"""Drafts as a client sees them: through the official SDK, the real server and the bundled model."""

import json
import stat

import httpx
import openai
import pytest

from tests.end_to_end.conftest import serving
from tests.server.openai_shapes import valid_chat, valid_timings

CODE = "".join(f"def area_{name}(width, height):\n    return width * height\n\n\n" for name in "abcd")
EDIT = [{"role": "user", "content": f"Rename width to breadth.\n\n```python\n{CODE}```"}]
REQUEST = {"model": "demo", "messages": EDIT, "max_tokens": 60}


@pytest.fixture
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def http(server_url):
    with httpx.Client(base_url=server_url, timeout=60) as made:
        yield made


def _ask(client, draft=None, **fields):
    body = {} if draft is None else {"extra_body": {"draft": draft}}
    return client.chat.completions.create(**REQUEST | fields, **body)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("draft_type", ["auto", "ngram-simple", "ngram-mod", "suffix"])
def test_no_draft_type_changes_the_answer(client, draft_type, sampling):
    plain = _ask(client, {"type": "none"}, **sampling)
    assert plain.timings["draft_n"] == 0
    drafted = _ask(client, {"type": draft_type}, **sampling)
    assert drafted.choices[0].message.content == plain.choices[0].message.content
    assert drafted.usage.completion_tokens == plain.usage.completion_tokens


def test_a_prediction_changes_no_answer_and_its_tokens_are_counted(client):
    plain = _ask(client, {"type": "none"}, temperature=0)
    content = plain.choices[0].message.content
    predicted = _ask(client, temperature=0, prediction={"type": "content", "content": content})
    assert predicted.choices[0].message.content == content
    valid_chat(predicted.model_dump(exclude_unset=True))
    details = predicted.usage.completion_tokens_details
    drafted = predicted.timings["by_source"].get("prediction", {"draft_n": 0, "draft_n_accepted": 0})
    assert details.accepted_prediction_tokens == drafted["draft_n_accepted"]
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == drafted["draft_n"]


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_last_chunk_of_a_stream_says_what_it_took(client, include_usage):
    chunks = list(_ask(client, stream=True, stream_options={"include_usage": include_usage}))
    assert all("timings" not in chunk.model_extra for chunk in chunks[:-1])
    timings = valid_timings(chunks[-1].timings)
    assert 0 < timings.forwards <= timings.predicted_n <= 60
    assert timings.predicted_ms > 0
    assert timings.draft_n == sum(counts["draft_n"] for counts in timings.by_source.values())


def test_the_table_is_saved_emptied_and_loaded_again(client, http, server_folder):
    _ask(client)
    saved = http.post("/v1/ngram-mod/save").json()
    assert saved["table"]["occupied"] > 0
    assert stat.S_IMODE((server_folder / "ngrams").stat().st_mode) == 0o600
    emptied = http.post("/v1/ngram-mod/reset").json()
    assert emptied["table"]["occupied"] == 0
    loaded = http.post("/v1/ngram-mod/load").json()
    assert loaded["table"]["occupied"] == saved["table"]["occupied"]
    assert http.get("/v1/ngram-mod").json()["occupied"] == saved["table"]["occupied"]


def test_the_table_s_file_is_refused_where_it_is_none(http, server_folder):
    (server_folder / "ngrams").write_bytes(b"something else")
    refused = http.post("/v1/ngram-mod/load")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "shared_memory_error"
    assert http.post("/v1/ngram-mod/save").status_code == 200


def test_metrics_count_what_was_asked(client, http):
    def count(name):
        lines = http.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))

    names = ("reprise_completion_tokens_total", "reprise_forwards_total")
    before = [count(name) for name in names]
    answer = _ask(client)
    tokens, forwards = (count(name) - start for name, start in zip(names, before, strict=True))
    assert tokens == answer.usage.completion_tokens
    assert forwards == answer.timings["forwards"]


def test_what_steps_cost_is_kept_in_the_cache_folder(tmp_path):
    with serving(tmp_path) as (address, _), openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        for _ in range(2):
            _ask(client)
    (entry,) = json.loads((tmp_path / "cache" / "reprise" / "step_costs.json").read_text()).values()
    assert entry["model"] == "reprise-demo (bfloat16)"
    assert entry["ratios"]
    assert all(rows == 1 < width and ratio > 0 for rows, width, ratio in entry["ratios"])
