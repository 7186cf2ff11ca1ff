"""GET /metrics, read with Prometheus' own parser."""

import asyncio
import dataclasses
import re
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reprise.engine.interface.events import DraftingReport, Failed, Usage
from reprise.engine.interface.status import GAP_BOUNDS_S, EngineCounts
from reprise.server.app import create_app
from reprise.server.generation import answer as submission
from reprise.server.metrics.definitions import GROUPS
from reprise.server.metrics.loop_lag import HELD_S
from reprise.server.reference import METRICS_PAGE, write_metrics_page
from tests.server import fake_engine
from tests.server.fake_engine import FakeEngine

PREFIX_COUNTS = [
    "num_bytes",
    "budget_bytes",
    "hits",
    "misses",
    "evictions",
    "file_bytes",
    "written_file_bytes",
    "left_out_files",
]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
DRAFTING = DraftingReport(
    num_drafted=14,
    num_accepted=7,
    num_forwards=4,
    by_source=(("suffix", 10, 6), ("prediction", 4, 1)),
    gate_decision="lookup",
    undrafted=(("dear", 3), ("unmatched", 1)),
)


async def _scrape(client):
    """Return the value of every sample by its name and labels."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            samples[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return samples


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_request_is_counted_with_its_tokens_and_drafts(client, engine, stream):
    engine.drafting = DRAFTING
    await client.post(COMPLETIONS, json={"prompt": "hello!!!", "n": 2, "stream": stream})
    samples = await _scrape(client)
    assert samples[f"reprise_requests_total{{endpoint={COMPLETIONS},status=200}}"] == 1
    assert samples["reprise_prompt_tokens_total"] == 8
    assert samples["reprise_cached_prompt_tokens_total"] == 3
    assert samples["reprise_completion_tokens_total"] == 16
    assert samples["reprise_drafted_tokens_total{source=suffix}"] == 20
    assert samples["reprise_accepted_tokens_total{source=suffix}"] == 12
    assert samples["reprise_accepted_tokens_total{source=prediction}"] == 2
    assert samples["reprise_forwards_total"] == 8
    assert samples["reprise_gate_decisions_total{decision=lookup}"] == 2
    assert samples["reprise_undrafted_steps_total{reason=dear}"] == 6
    assert samples["reprise_undrafted_steps_total{reason=unmatched}"] == 2


async def test_times_are_observed_for_each_sequence(client, engine):
    engine.drafting = DRAFTING
    await client.post(COMPLETIONS, json={"prompt": "hello!!!", "n": 2})
    samples = await _scrape(client)
    for name, total in {"queue_seconds": 0.1, "time_to_first_token_seconds": 0.5}.items():
        assert samples[f"reprise_{name}_count"] == 2
        assert samples[f"reprise_{name}_sum"] == pytest.approx(total)


async def test_the_duration_is_that_of_requests_that_generate_tokens(client):
    await client.post(COMPLETIONS, json={"prompt": "hello", "n": 2})
    await client.post(COMPLETIONS, json={"prompt": "hello", "stream": True})
    await client.post(COMPLETIONS, json={})
    await client.get("/health")
    samples = await _scrape(client)
    assert samples["reprise_request_duration_seconds_count"] == 2
    assert samples["reprise_request_duration_seconds_sum"] > 0


async def test_histograms_get_no_value_for_what_did_not_happen(client, engine):
    engine.script = fake_engine.fail_first
    await client.post(COMPLETIONS, json={"prompt": "hello"})
    samples = await _scrape(client)
    assert samples[f"reprise_requests_total{{endpoint={COMPLETIONS},status=500}}"] == 1
    assert samples["reprise_time_to_first_token_seconds_count"] == 0


@pytest.mark.parametrize(
    ("method", "path", "label", "status"),
    [
        ("GET", "/health", "/health", 200),
        ("GET", "/v1/models/org/fake-model", "/v1/models/{name}", 200),
        ("GET", "/v1/models/no/such", "/v1/models/{name}", 404),
        ("GET", "/v1/models", "/v1/models", 200),
        ("POST", CHAT, CHAT, 400),
        ("GET", "/v1/secret-7", "other", 404),
        ("GET", "/metrics/7", "other", 404),
    ],
)
async def test_the_endpoint_label_is_a_known_endpoint_for_every_path(client, method, path, label, status):
    await client.request(method, path)
    samples = await _scrape(client)
    counted = {name for name in samples if name.startswith("reprise_requests_total")}
    assert counted == {f"reprise_requests_total{{endpoint={label},status={status}}}"}


async def test_the_engine_s_state_is_read_at_each_scrape(client, engine):
    before = await _scrape(client)
    assert (before["reprise_rows"], before["reprise_waiting"]) == (0, 0)
    assert before["reprise_ngram_table_entries"] == 1024
    assert before["reprise_ngram_table_occupied_entries"] == 256
    engine.memory = {"entries": 2048}
    after = await _scrape(client)
    assert after["reprise_ngram_table_entries"] == 2048
    assert "reprise_ngram_table_occupied_entries" not in after
    engine.memory = None
    assert not any(name.startswith("reprise_ngram") for name in await _scrape(client))


async def test_a_scrape_works_when_the_engine_is_dead(client, engine):
    engine.fault = "RuntimeError: out of luck"
    assert "reprise_rows" in await _scrape(client)


async def test_apps_have_separate_counters(client, settings):
    create_app(FakeEngine(), settings)
    await client.get("/health")
    assert (await _scrape(client))["reprise_requests_total{endpoint=/health,status=200}"] == 1


async def test_the_page_and_a_scrape_have_every_metric(client, engine):
    engine.drafting = DRAFTING
    by_rank = {name: {"1": 1.0} for name in ("active_bytes", "silent_seconds")}
    engine.counted = dataclasses.replace(engine.counted, by_rank=by_rank)
    engine.prefixes = {"target": dict.fromkeys(PREFIX_COUNTS, 1)}
    await client.post(COMPLETIONS, json={"prompt": "hello!!!"})
    await client.post(COMPLETIONS, json={})
    engine.script = fake_engine.says("<tool_call>{}</tool_call>")
    tools = [{"type": "function", "function": {"name": "f"}}]
    await client.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], "tools": tools})
    engine.script = lambda *_: Failed("cancelled", "the client left", Usage(total_s=1.0))
    # On the event loop, which this holds.
    until_s = time.thread_time() + 3 * HELD_S
    while time.thread_time() < until_s:
        pass
    await client.post(COMPLETIONS, json={"prompt": "hello!!!"})
    names = {name.partition("{")[0] for name in await _scrape(client)}
    for ending in ("_bucket", "_count", "_sum"):
        names = {name.removesuffix(ending) for name in names}
    listed = {metric.name: metric for group in GROUPS for metric in group.metrics}
    assert names == set(listed)
    assert METRICS_PAGE.read_text(encoding="utf-8") == write_metrics_page(), (
        "run .venv/bin/python -m reprise.server.reference"
    )
    for name, metric in listed.items():
        assert re.search(
            rf"^\| `{name}` \| {metric.kind}.* \| .+\. \|$", write_metrics_page(), re.MULTILINE
        ), name


async def test_names_are_as_prometheus_wants_them():
    for metric in (metric for group in GROUPS for metric in group.metrics):
        assert re.fullmatch(r"(reprise|process)_[a-z_]+", metric.name)


async def test_every_sequence_is_counted_by_how_it_ended(client, engine):
    for script in (fake_engine.echo, fake_engine.fail_first, fake_engine.says("no end", reason="length")):
        engine.script = script
        await client.post(COMPLETIONS, json={"prompt": "hello", "n": 2, "stream": True})
    samples = await _scrape(client)
    for end in ("stop", "request", "length"):
        assert samples[f"reprise_sequences_total{{end={end}}}"] == 2


@pytest.mark.parametrize(("queue_s", "num_admitted"), [(1.0, 0), (0.5, 1)])
async def test_a_cancelled_sequence_is_counted_with_its_wait_if_it_was_admitted(
    client, engine, queue_s, num_admitted
):
    usage = Usage(num_prompt_tokens=4, queue_s=queue_s, prefill_s=1.0, first_token_s=1.0, total_s=1.0)
    engine.script = lambda *_: Failed("cancelled", "the client left", usage)
    await client.post(COMPLETIONS, json={"prompt": "hello"})
    samples = await _scrape(client)
    assert samples["reprise_sequences_total{end=cancelled}"] == 1
    assert samples["reprise_queue_seconds_count"] == num_admitted


def test_a_sequence_is_counted_however_late_it_ends(engine, url, monkeypatch):
    """The engine may end a sequence long after its client has left and the response is over."""
    monkeypatch.setattr(submission, "SETTLE_S", 0.5)

    def linger(engine, job):
        job.cancelled.wait(240)
        engine.wait_until(lambda: False, 1.0)
        return Failed("cancelled", "the client left", Usage(num_prompt_tokens=5, total_s=1.0))

    engine.script = linger
    with httpx.Client(timeout=httpx.Timeout(10, read=0.2)) as http, pytest.raises(httpx.ReadTimeout):
        http.post(url + COMPLETIONS, json={"prompt": "hello"})
    assert engine.wait_until(lambda: engine.num_live == 0)
    text = ""
    for _ in range(50):
        text = httpx.get(f"{url}/metrics").text
        if "reprise_prompt_tokens_total 5.0" in text:
            break
    assert 'reprise_sequences_total{end="cancelled"} 1.0' in text


async def test_errors_are_counted_by_code_also_those_in_a_stream(client, engine):
    await client.post(COMPLETIONS, json={})
    await client.get("/nowhere")
    await client.post("/v1/messages", json={})
    engine.script = fake_engine.fail_midway
    await client.post(COMPLETIONS, json={"prompt": "hello", "stream": True})
    samples = await _scrape(client)
    assert {name: value for name, value in samples.items() if name.startswith("reprise_errors")} == {
        "reprise_errors_total{code=missing_required_parameter}": 2,
        "reprise_errors_total{code=unknown_url}": 1,
        "reprise_errors_total{code=request_failed}": 1,
    }


async def test_requests_in_progress_are_counted(client, engine):
    engine.script = fake_engine.wait_first
    asked = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "hello"}))
    assert await asyncio.to_thread(engine.wait_until, lambda: engine.num_live == 1, 5)  # noqa: TID251
    # The scrape itself is a request too.
    assert (await _scrape(client))["reprise_requests_in_progress"] == 2
    engine.release()
    await asked
    assert (await _scrape(client))["reprise_requests_in_progress"] == 1


async def test_the_engine_s_counts_and_the_memory_are_reported(client, engine):
    gaps = (0, 1, 2, *[3] * (len(GAP_BOUNDS_S) - 2))
    spans = {"idle": 1.5, "planning": 0.5}
    engine.counted = EngineCounts(1, 2, 3, gaps, 0.5, 4, 5, 6, spans, pressure_level=2, given_back_bytes=9)
    engine.prefixes = {
        "target": {"num_bytes": 7, "budget_bytes": 8, "hits": 10},
        "draft": {"num_bytes": 11, "hits": 12},
    }
    samples = await _scrape(client)
    for name, value in {
        "reprise_failed_steps_total": 1,
        "reprise_preemptions_total": 2,
        "reprise_stalls_total": 3,
        "reprise_engine_seconds_total{span=idle}": 1.5,
        "reprise_engine_seconds_total{span=planning}": 0.5,
        f"reprise_inter_token_seconds_bucket{{le={GAP_BOUNDS_S[1]}}}": 1,
        "reprise_inter_token_seconds_count": 3,
        "reprise_inter_token_seconds_sum": 0.5,
        "reprise_mlx_active_bytes": 4,
        "reprise_mlx_peak_bytes": 5,
        "reprise_mlx_cache_bytes": 6,
        "reprise_memory_pressure": 2,
        "reprise_memory_given_back_bytes_total": 9,
        "reprise_prefix_cache_bytes{model=target}": 7,
        "reprise_prefix_cache_budget_bytes{model=target}": 8,
        "reprise_prefix_cache_hits_total{model=target}": 10,
        "reprise_prefix_cache_bytes{model=draft}": 11,
        "reprise_prefix_cache_hits_total{model=draft}": 12,
        "reprise_ready": 1,
    }.items():
        assert samples[name] == value, name
    assert samples["process_resident_memory_bytes"] > 2**20
    assert samples["process_threads"] >= 1
    engine.state = "draining"
    assert (await _scrape(client))["reprise_ready"] == 0


async def test_stored_responses_are_reported(client):
    before = await _scrape(client)
    assert before["reprise_response_store_bytes"] == 0
    await client.post("/v1/responses", json={"model": "alias", "input": "hello"})
    after = await _scrape(client)
    assert 0 < after["reprise_response_store_bytes"] < after["reprise_response_store_budget_bytes"]
