"""Every response has timings, with the names of llama-server."""

import json

import openai
import pytest

from reprise.engine.interface.events import DraftingReport, Usage
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.server.generation.recorder import fill_record
from reprise.server.logs import RequestRecord
from reprise.server.output.presenter import explain_undrafted, measure_timings
from tests.server import fake_engine
from tests.server.openai_shapes import stream_data, valid_timings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "hello"}]}, COMPLETIONS: {"prompt": "hello"}}
DRAFTING = DraftingReport(
    num_drafted=14,
    num_accepted=11,
    num_forwards=5,
    by_source=(("suffix", 10, 9), ("prediction", 4, 2)),
    gate_score=0.25,
    gate_decision="lookup",
    gate_reason="repetition 0.250, threshold 0.01",
)


@pytest.mark.parametrize("path", BODIES)
async def test_a_response_has_timings(client, engine, path):
    engine.drafting = DRAFTING
    answer = (await client.post(path, json=BODIES[path])).json()
    timings = valid_timings(answer["timings"])
    num_prompt, num_completion = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (3, num_prompt - 3, num_completion)
    assert timings.prompt_ms == pytest.approx(200)
    assert timings.predicted_ms == pytest.approx(100 * num_completion)
    assert timings.prompt_per_second == pytest.approx((num_prompt - 3) / 0.2)
    assert timings.predicted_per_second == pytest.approx(10)
    assert (timings.draft_n, timings.draft_n_accepted, timings.forwards) == (14, 11, 5)
    assert timings.by_source == {
        "suffix": {"draft_n": 10, "draft_n_accepted": 9},
        "prediction": {"draft_n": 4, "draft_n_accepted": 2},
    }
    assert timings.gate == {
        "score": 0.25,
        "decision": "lookup",
        "reason": "repetition 0.250, threshold 0.01",
        "undrafted": None,
    }


@pytest.mark.parametrize(("loops", "stopped"), [((False, True), "loop"), ((False, False), None)])
def test_timings_and_the_log_say_that_an_answer_repeated_itself(loops, stopped):
    usages = dict(enumerate(Usage(num_completion_tokens=3, is_loop=is_loop) for is_loop in loops))
    assert measure_timings(usages.values()).get("stopped") == stopped
    record = RequestRecord("id", "id", "POST /v1/completions", finish_reason="stop stop")
    asked = GenerationRequest("id", (1,), 9, Sampling(1))
    fill_record(record, [asked, asked], usages, 2)
    assert ("stop stop (loop)" in record.as_text()) == (stopped is not None)


@pytest.mark.parametrize("path", BODIES)
async def test_timings_say_why_nothing_was_drafted(client, engine, path):
    engine.drafting = DraftingReport(gate_decision="lookup", why_undrafted="nothing matched")
    answer = (await client.post(path, json=BODIES[path] | {"n": 2})).json()
    assert valid_timings(answer["timings"]).gate["undrafted"] == "nothing matched"


@pytest.mark.parametrize(
    ("reasons", "num_accepted", "told"),
    [
        (["nothing matched"], 0, "nothing matched"),
        (["nothing matched"], 9, "nothing matched"),
        (["nothing matched"], 10, None),
        (["nothing matched", "a reason"], 9, "nothing matched"),
        (["nothing matched", ""], 9, None),
        ([""], 0, None),
        ([], 0, None),
    ],
)
def test_why_is_said_if_next_to_nothing_was_drafted(reasons, num_accepted, told):
    usages = [
        Usage(
            num_completion_tokens=100,
            drafting=DraftingReport(num_accepted=num_accepted, why_undrafted=reason),
        )
        for reason in reasons
    ]
    assert explain_undrafted(usages) == told


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("include_usage", [True, False])
async def test_only_the_last_chunk_of_a_stream_has_timings(client, engine, path, n, include_usage):
    engine.drafting = DRAFTING
    options = {"stream": True, "n": n, "stream_options": {"include_usage": include_usage}}
    whole = (await client.post(path, json=BODIES[path] | {"n": n})).json()
    response = await client.post(path, json=BODIES[path] | options)
    *earlier, last, done = stream_data(response.text)
    assert done == "[DONE]"
    assert not any("timings" in json.loads(chunk) for chunk in earlier)
    last = json.loads(last)
    assert valid_timings(last["timings"]) == valid_timings(whole["timings"])
    assert [choice["finish_reason"] for choice in last["choices"]] == ([] if include_usage else ["stop"])


@pytest.mark.parametrize("path", BODIES)
async def test_timings_count_translated_drafts(client, engine, path):
    counts = {"translated": 9, "absorbed": 2, "resynchronised": 1, "skipped": 3}
    engine.drafting = DraftingReport(
        by_source=(("draft-model", 14, 11),), strategy="context", translation=counts
    )
    answer = (await client.post(path, json=BODIES[path] | {"n": 2})).json()
    assert valid_timings(answer["timings"]).translation == {
        "strategy": "context",
        "drafted": 28,
        "accepted": 22,
        **{name: 2 * count for name, count in counts.items()},
    }
    engine.drafting = DRAFTING
    answer = (await client.post(path, json=BODIES[path])).json()
    assert "translation" not in answer["timings"]


def test_the_sdk_gives_access_to_timings(url, engine):
    engine.drafting = DRAFTING
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="alias", **BODIES[CHAT])
    assert answer.timings["draft_n_accepted"] == 11
    *_, last = client.chat.completions.create(model="alias", **BODIES[CHAT], stream=True)
    assert last.timings["by_source"]["suffix"]["draft_n"] == 10


async def test_a_stream_that_fails_has_no_timings(client, engine):
    engine.script = fake_engine.fail_midway
    response = await client.post(CHAT, json=BODIES[CHAT] | {"stream": True})
    assert "timings" not in response.text


def test_counts_of_choices_are_summed_and_their_times_overlap():
    early = Usage(10, 4, 20, queue_s=1, prefill_s=2, first_token_s=2.5, total_s=4, drafting=DRAFTING)
    late = Usage(10, 9, 30, queue_s=2, prefill_s=3, first_token_s=3.5, total_s=7, drafting=DraftingReport())
    timings = measure_timings([early, late])
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (13, 7, 50)
    assert (timings["prompt_ms"], timings["predicted_ms"], timings["predicted_per_second"]) == (
        2500,
        5000,
        10,
    )
    assert (timings["draft_n"], timings["draft_n_accepted"], timings["forwards"]) == (14, 11, 5)
    assert timings["gate"]["decision"] == "lookup"


def test_a_sequence_that_took_no_time_has_rates_of_zero():
    timings = measure_timings([Usage(num_prompt_tokens=3)])
    assert (timings["prompt_per_second"], timings["predicted_per_second"]) == (0, 0)
