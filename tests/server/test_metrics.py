"""GET /metrics, read with Prometheus' own parser."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.request import DraftingReport
from server.app import create_app
from tests.server import fake_engine
from tests.server.fake_engine import FakeEngine

README = Path(__file__).parents[2] / "README.md"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
DRAFTING = DraftingReport(
    num_drafted=14,
    num_accepted=7,
    num_forwards=4,
    by_source=(("suffix", 10, 6), ("prediction", 4, 1)),
    gate_decision="lookup",
)


async def _scrape(client):
    """Every sample: name and labels as Prometheus would show them, and its value."""
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


async def test_times_and_shares_are_observed_for_each_sequence(client, engine):
    engine.drafting = DRAFTING
    await client.post(COMPLETIONS, json={"prompt": "hello!!!", "n": 2})
    samples = await _scrape(client)
    for name, total in {
        "time_to_first_token_seconds": 0.5,
        "inter_token_seconds": 0.2,
        "acceptance_ratio": 1.0,
        "tokens_per_forward": 4.0,
    }.items():
        assert samples[f"reprise_{name}_count"] == 2
        assert samples[f"reprise_{name}_sum"] == pytest.approx(total)


async def test_the_duration_is_that_of_requests_that_asked_for_tokens(client):
    await client.post(COMPLETIONS, json={"prompt": "hello", "n": 2})
    await client.post(COMPLETIONS, json={"prompt": "hello", "stream": True})
    await client.post(COMPLETIONS, json={})
    await client.get("/health")
    samples = await _scrape(client)
    assert samples["reprise_request_duration_seconds_count"] == 2
    assert samples["reprise_request_duration_seconds_sum"] > 0


async def test_what_did_not_happen_is_not_observed(client, engine):
    engine.script = fake_engine.fail_first
    await client.post(COMPLETIONS, json={"prompt": "hello"})
    samples = await _scrape(client)
    assert samples[f"reprise_requests_total{{endpoint={COMPLETIONS},status=500}}"] == 1
    for name in ("time_to_first_token_seconds", "inter_token_seconds", "acceptance_ratio"):
        assert samples[f"reprise_{name}_count"] == 0


@pytest.mark.parametrize(
    ("method", "path", "label", "status"),
    [
        ("GET", "/health", "/health", 200),
        ("GET", "/v1/models/org/fake-model", "/v1/models/{name}", 200),
        ("GET", "/v1/models/no/such", "/v1/models/{name}", 404),
        ("GET", "/v1/models", "/v1/models", 200),
        ("POST", CHAT, CHAT, 415),
        ("GET", "/v1/secret-7", "other", 404),
        ("GET", "/metrics/7", "other", 404),
    ],
)
async def test_a_label_is_a_known_address_whatever_is_asked(client, method, path, label, status):
    await client.request(method, path)
    samples = await _scrape(client)
    counted = {name for name in samples if name.startswith("reprise_requests_total")}
    assert counted == {f"reprise_requests_total{{endpoint={label},status={status}}}"}


async def test_the_engine_s_state_is_asked_at_each_scrape(client, engine):
    before = await _scrape(client)
    assert (before["reprise_rows"], before["reprise_waiting"]) == (0, 0)
    assert before["reprise_ngram_table_entries"] == 1024
    assert before["reprise_ngram_table_occupancy_ratio"] == 0.25
    engine.memory = {"entries": 1024, "hits": 9}
    after = await _scrape(client)
    assert after["reprise_ngram_table_hits_total"] == 9
    assert "reprise_ngram_table_occupancy_ratio" not in after
    engine.memory = None
    assert not any(name.startswith("reprise_ngram") for name in await _scrape(client))


async def test_a_scrape_works_when_the_engine_is_dead(client, engine):
    engine.fault = "RuntimeError: out of luck"
    assert "reprise_rows" in await _scrape(client)


async def test_apps_count_for_themselves(client, settings):
    create_app(FakeEngine(), settings)
    await client.get("/health")
    assert (await _scrape(client))["reprise_requests_total{endpoint=/health,status=200}"] == 1


async def test_the_readme_has_every_metric(client, engine):
    engine.drafting = DRAFTING
    engine.memory = dict.fromkeys(
        ["entries", "occupied", "occupancy", "bytes", "inserts", "overwrites", "hits", "misses"], 1
    )
    await client.post(COMPLETIONS, json={"prompt": "hello!!!"})
    names = {name.partition("{")[0] for name in await _scrape(client)}
    for ending in ("_bucket", "_count", "_sum"):
        names = {name.removesuffix(ending) for name in names}
    text = README.read_text()
    assert len(names) >= 23
    assert {name for name in names if f"`{name}`" not in text} == set()
    assert not any(name.endswith("_created") for name in names)
