import asyncio
import io
import json
import math
from dataclasses import replace

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.events import DraftingReport, Usage
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.server.app import create_app
from reprise.server.generation import answer as request_output
from reprise.server.generation.answer import LongAnswerLog, Submission
from reprise.server.generation.recorder import fill_record
from reprise.server.logs import LoadingLog, RequestRecord, configure_logs
from reprise.server.metrics import loop_lag
from tests.server import fake_engine

SECRET = "my secret"
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": SECRET}]}


@pytest.fixture
def log(monkeypatch):
    """Redirects the log to a string."""
    # A busy machine adds no line.
    monkeypatch.setattr(loop_lag, "HELD_S", math.inf)

    def configure(log_format, log_level="info", **options):
        stream = io.StringIO()
        configure_logs(log_format, log_level, stream, **options)
        return stream

    yield configure
    configure("text")


def test_a_start_is_logged_line_by_line_for_programs_and_now_and_then_for_people(log):
    told = [("Loading m", 0.0), ("Loading m", 0.05), ("Loading m", 0.5), ("Trying m", 0.0), ("Trying m", 0.1)]
    lines = []
    for every_s in (0.0, 10.0):
        written, now_s = log("text"), iter([0.0, 6.0, 12.0, 18.0, 24.0, 30.0])
        loading = LoadingLog(every_s, now_s.__next__)
        for what, share in told:
            loading.advance(what, share)
        lines.append([line.partition("INFO    ")[2] for line in written.getvalue().splitlines()])
    every = ["Loading m, 0 %", "Loading m, 50 %", "Trying m, 0 %", "Trying m, 10 %"]
    assert lines == [every, ["Loading m, 5 %", "Trying m, 0 %"]]


def test_a_long_answer_without_max_tokens_is_logged_after_a_minute_and_then_ever_more_rarely(log):
    written, times_s = log("text"), iter(range(0, 1000, 10))
    long = LongAnswerLog(500, times_s.__next__)
    said = []
    for _ in range(99):
        long.look()
        if (line := written.getvalue()) != "".join(said):
            said.append(line.removeprefix("".join(said)))
    for line, taken_s in zip(said, (60, 120, 240, 480, 960), strict=True):
        assert f"it has run for {taken_s} s and sets no max_tokens: it may take up to 500 tokens (" in line


@pytest.mark.parametrize(("fields", "is_logged"), [({}, True), ({"max_tokens": 5}, False)])
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_only_an_answer_that_sets_no_limit_is_logged_while_it_runs(
    client, engine, log, monkeypatch, fields, is_logged, stream
):
    monkeypatch.setattr(request_output, "LONG_S", 0.0)
    monkeypatch.setattr(request_output, "KEEP_ALIVE_S", 0.01)
    looked = asyncio.Event()
    receive = Submission.receive

    async def noting(self):
        if not (events := await receive(self)):
            looked.set()
        return events

    monkeypatch.setattr(Submission, "receive", noting)
    written = log("text")
    engine.script = fake_engine.wait_midway
    asked = asyncio.create_task(client.post(CHAT, json=BODY | fields | {"stream": stream}))
    await looked.wait()
    engine.release()
    await asked
    assert (" it has run for 0 s and sets no max_tokens: " in written.getvalue()) == is_logged


def _only_line(stream):
    (line,) = stream.getvalue().splitlines()
    return line


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_request_is_one_line_of_json_with_all_its_figures(client, log, stream):
    written = log("json")
    response = await client.post(CHAT, json=BODY | {"stream": stream})
    line = json.loads(_only_line(written))
    assert line.pop("total_ms") > 0
    assert line.pop("time").endswith("+00:00")
    num_tokens = len(f"user: {SECRET}\n")
    assert line == {
        "level": "info",
        "event": "request",
        "id": response.headers["x-request-id"],
        "endpoint": f"POST {CHAT}",
        "status": 200,
        "num_prompt_tokens": num_tokens,
        "num_cached_tokens": 3,
        "num_completion_tokens": num_tokens,
        "num_forwards": 0,
        "drafts": {},
        "undrafted": None,
        "wedlm_decoding": "off",
        "translation": None,
        "first_token_ms": 250.0,
        "tokens_per_s": pytest.approx(10.0),
        "finish_reason": "stop",
        "is_loop": False,
        "error": None,
        "param": None,
        "ignored": [],
        "relaxed": [],
    }


async def test_the_log_says_once_what_was_left_out_shown_as_text_or_understood(client, log):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    history = [{"role": "user", "content": [image, {"type": "text", "text": "a"}, {"type": "fallback"}]}]
    messages = [*history, {"role": "assistant", "content": "b"}, {"role": "human", "content": "c"}]
    written = log("text")
    named = (await client.post(CHAT, json={"messages": messages})).headers["x-reprise-ignored"]
    # Images come last: only the model says whether they are shown.
    assert named == (
        "messages[0].content[2], messages[2].role (understood), messages[0].content[0] (as text)"
    )
    assert _only_line(written).count(f", ignored {named}, ") == 1


async def test_a_request_is_one_line_of_text(client, log):
    written = log("text")
    response = await client.post(CHAT, json=BODY)
    line = _only_line(written)
    assert f"INFO    {response.headers['x-request-id']} POST {CHAT} 200, stop, " in line
    assert "stop, 16 prompt tokens (3 cached), 16 completion tokens, " in line
    assert "first token 250 ms, 10.0 tokens/s" in line
    assert "drafts" not in line


async def test_a_line_says_what_drafts_did(client, engine, log):
    engine.drafting = DraftingReport(
        num_drafted=14, num_accepted=11, num_forwards=5, by_source=(("suffix", 10, 9), ("prediction", 4, 2))
    )
    written = log("text")
    await client.post(CHAT, json=BODY | {"n": 2})
    assert "drafts suffix 18/20 + prediction 4/8 accepted, 3.2 tokens/forward, " in _only_line(written)
    written = log("json")
    await client.post(CHAT, json=BODY)
    line = json.loads(_only_line(written))
    assert line["drafts"] == {"suffix": [10, 9], "prediction": [4, 2]}
    assert line["num_forwards"] == 5


async def test_a_line_says_why_nothing_or_little_was_drafted(client, engine, log):
    engine.drafting = DraftingReport(num_forwards=16, why_undrafted="nothing matched")
    written = log("text")
    await client.post(CHAT, json=BODY)
    assert "10.0 tokens/s, no drafts: nothing matched, total" in _only_line(written)
    engine.drafting = replace(engine.drafting, num_drafted=4, num_accepted=1, by_source=(("suffix", 4, 1),))
    written = log("text")
    await client.post(CHAT, json=BODY)
    assert "drafts suffix 1/4 accepted, few drafts: nothing matched, 1.0 tokens/forward, " in _only_line(
        written
    )
    written = log("json")
    await client.post(CHAT, json=BODY)
    assert json.loads(_only_line(written))["undrafted"] == "nothing matched"


async def test_a_line_says_that_the_answer_may_differ(client, engine, log):
    engine.info = replace(engine.info, mask_token_id=7, can_decode_windows=True)
    engine.drafting = DraftingReport(num_forwards=8)
    written = log("text")
    await client.post(CHAT, json=BODY | {"wedlm_decoding": "streaming"})
    assert "wedlm_decoding streaming, 2.0 tokens/forward, " in _only_line(written)


async def test_a_line_says_how_drafts_were_translated(client, engine, log):
    counts = {"translated": 9, "absorbed": 0, "resynchronised": 1, "skipped": 3}
    engine.drafting = DraftingReport(
        num_forwards=5, by_source=(("draft-model", 14, 11),), strategy="context", translation=counts
    )
    written = log("text")
    await client.post(CHAT, json=BODY)
    expected = (
        "draft-model 11/14 accepted (context: 9 translated, 1 resynchronised, 3 skipped), 3.2 tokens/forward"
    )
    assert expected in _only_line(written)
    written = log("json")
    await client.post(CHAT, json=BODY)
    assert json.loads(_only_line(written))["translation"] == {"strategy": "context"} | counts


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("script", [fake_engine.echo, fake_engine.fail_first, fake_engine.fail_midway])
async def test_neither_prompt_nor_answer_is_logged_even_at_debug(client, engine, log, log_format, script):
    engine.script = script
    written = log(log_format, "debug")
    await client.post(CHAT, json=BODY | {"stream": True})
    await client.post(CHAT, json=BODY)
    await client.post(CHAT, json=BODY | {"user": 5, "stop": SECRET})
    assert written.getvalue()
    assert SECRET not in written.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_key_is_ever_logged(engine, log, log_format):
    written = log(log_format, "debug")
    app = create_app(engine, Settings(api_key=("in-force",)))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as http:
        for key in ("in-force", "out-of-force"):
            for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
                for script in (fake_engine.echo, fake_engine.fail_first):
                    engine.script = script
                    await http.post(f"http://a{CHAT}", json=BODY, headers=headers)
    assert "200" in written.getvalue()
    assert "401" in written.getvalue()
    assert "of-force" not in written.getvalue()
    assert "in-force" not in written.getvalue()


async def test_a_failed_request_says_so(client, engine, log):
    engine.script = fake_engine.fail_first
    written = log("json")
    await client.post(CHAT, json=BODY)
    line = json.loads(_only_line(written))
    assert (line["status"], line["finish_reason"]) == (500, "error")


async def test_a_refused_request_has_its_line(client, log):
    written = log("json")
    await client.post(CHAT, json={})
    assert json.loads(_only_line(written))["status"] == 400


async def test_health_checks_are_logged_only_at_debug(client, log):
    written = log("json")
    await client.get("/health")
    assert written.getvalue() == ""
    written = log("json", "debug")
    await client.get("/health")
    assert json.loads(_only_line(written))["endpoint"] == "GET /health"


async def test_a_refused_request_is_logged_with_the_field_at_fault(client, log):
    written = log("text")
    body = {"messages": [{"role": "user", "content": "a"}], "temperature": "hot\n"}
    assert (await client.post(CHAT, json=body)).status_code == 400
    assert "400, invalid_type in temperature, total" in _only_line(written)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_path_cannot_forge_a_line(client, log, log_format):
    written = log(log_format)
    await client.get("/x%0AINFO%20forged")
    assert "\\n" in _only_line(written)


def test_the_cached_tokens_of_a_request_that_has_yet_to_end_are_not_called_none():
    record = RequestRecord("r", "u", "POST /v1/completions", finish_reason="cancelled")
    asked = GenerationRequest("r-0", (1, 2, 3), 5, Sampling(0))
    fill_record(record, [asked], {}, 1)
    assert (record.num_prompt_tokens, record.num_cached_tokens) == (3, None)
    assert "cancelled, 3 prompt tokens, 0 completion tokens" in record.as_text()
    fill_record(record, [asked], {0: Usage(num_prompt_tokens=3, num_cached_tokens=2)}, 1)
    assert "3 prompt tokens (2 cached)" in record.as_text()


def test_a_request_to_one_of_several_models_names_it():
    record = RequestRecord("r", "u", "POST /v1/completions", model="org/two", status=200)
    assert record.as_text().startswith("r POST /v1/completions 200, model org/two, ")


@pytest.mark.parametrize("name", ["", " ", "a ", "\n", "é"])
async def test_a_field_of_any_name_is_named_in_a_header(url, name):
    """By a real server, which sends no header that begins or ends with a space."""
    body = {"prompt": "a", "max_tokens": 1, name: 1}
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 200
    named = response.headers["x-reprise-ignored"]
    assert named.isascii()
    assert named == named.strip() != ""
