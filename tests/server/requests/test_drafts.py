"""Draft options reach the engine, and draft counts reach the client."""

import json

import httpx
import openai
import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.events import DraftingReport
from reprise.engine.interface.request import DraftChoice
from reprise.server.app import create_app
from reprise.server.generation.prepare import Prompts, make_engine_requests
from reprise.server.requests.completions import CompletionRequest
from tests.server.fake_engine import traces
from tests.server.openai_shapes import valid_chat

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "hello"}]}, COMPLETIONS: {"prompt": "hello"}}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({}, DraftChoice()),
        ({"draft": None}, DraftChoice()),
        ({"draft": {}}, DraftChoice()),
        ({"draft": {"type": None, "max_tokens": None}}, DraftChoice()),
        ({"draft": {"type": "suffix"}}, DraftChoice("suffix")),
        ({"draft": {"type": "none", "max_tokens": 0}}, DraftChoice("none", 0)),
        ({"draft": {"max_tokens": 255}}, DraftChoice(None, 255)),
    ],
    ids=str,
)
async def test_the_choice_of_drafts_reaches_the_engine(client, engine, path, given, choice):
    response = await client.post(path, json=BODIES[path] | given | {"n": 2})
    assert response.status_code == 200, response.text
    assert [request.draft for request in engine.requests] == [choice, choice]


def test_a_draft_model_may_be_asked_for_where_there_is_one(engine):
    body = CompletionRequest(prompt="a", draft={"type": "draft-model"})
    (engine_request,) = make_engine_requests(
        "r", body, Prompts([(1,)]), engine.info, Settings(draft_model="small")
    )
    assert engine_request.draft == DraftChoice("draft-model")


def test_the_sdk_sends_the_choice_in_its_extra_body(url, engine):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    client.chat.completions.create(
        model="alias", **BODIES[CHAT], extra_body={"draft": {"type": "ngram-mod", "max_tokens": 8}}
    )
    assert engine.requests[0].draft == DraftChoice("ngram-mod", 8)


@pytest.mark.parametrize(
    "content",
    ["expected", [{"type": "text", "text": "expec"}, {"type": "text", "text": "ted"}]],
    ids=["text", "parts"],
)
async def test_a_prediction_reaches_the_engine_as_tokens_of_an_answer(client, engine, content):
    body = BODIES[CHAT] | {"prediction": {"type": "content", "content": content}, "n": 2}
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    assert [request.prediction for request in engine.requests] == [tuple(b"expected")] * 2
    # Views are encoded later.
    assert engine.tokenizer.encoded_answers.count("expected") == 1


@pytest.mark.parametrize("prediction", [None, {"type": "content", "content": ""}], ids=str)
async def test_without_a_prediction_there_are_no_tokens(client, engine, prediction):
    response = await client.post(CHAT, json=BODIES[CHAT] | {"prediction": prediction})
    assert response.status_code == 200, response.text
    assert engine.requests[0].prediction == ()


def test_usage_counts_accepted_and_rejected_prediction_tokens_over_all_choices(url, engine):
    engine.drafting = DraftingReport(accepted_prediction=5, rejected_prediction=2)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="alias", **BODIES[CHAT], n=2, prediction={"type": "content", "content": "hello"}
    )
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (10, 4)
    assert (details.reasoning_tokens, details.audio_tokens) == (0, 0)


async def test_usage_has_the_details_without_a_prediction_too(client):
    usage = valid_chat((await client.post(CHAT, json=BODIES[CHAT])).json()).usage
    assert usage.completion_tokens_details.accepted_prediction_tokens == 0


KEYS = ("Bearer one", "bearer  one", "Bearer two", "Basic one", "Bearer ", None)


async def _tenants(app_engine, settings):
    transport = httpx.ASGITransport(app := create_app(app_engine, settings))
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as http:
        for key in KEYS:
            headers = {} if key is None else {"Authorization": key}
            await http.post(f"http://reprise{COMPLETIONS}", json={"prompt": "a"}, headers=headers)
    return [request.tenant for request in app_engine.requests]


async def test_requests_with_the_same_key_have_the_same_tenant_which_is_not_the_key(engine):
    one, again, two, basic, empty, missing = await _tenants(engine, Settings(ngram_scope="api-key"))
    assert one == again != two
    assert basic == empty == missing == ""
    assert "one" not in one


async def test_with_scope_process_there_is_one_tenant(engine):
    assert set(await _tenants(engine, Settings(ngram_scope="process"))) == {""}


RUNS = (("ab", "suffix"), ("c", "suffix"), ("d", "model"), (" <think>e", "grammar"))
MERGED = [
    {"text": "abc", "source": "suffix"},
    {"text": "d", "source": "model"},
    {"text": " <think>e", "source": "grammar"},
]


def traced(response):
    """Return the traces of the choices of a response or stream, by index."""
    lines = response.text.splitlines()
    bodies = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("{", "data: {"))]
    traces = {}
    for choice in (choice for body in bodies for choice in body["choices"]):
        traces.setdefault(choice["index"], []).extend(choice.get("draft_trace", []))
    return traces


@pytest.mark.parametrize("path", BODIES)
async def test_a_trace_says_what_drafted_the_text(client, engine, path):
    engine.script = traces(*RUNS)
    body = BODIES[path] | {"draft": {"trace": True}, "n": 2}
    response = await client.post(path, json=body)
    assert traced(response) == {0: MERGED, 1: MERGED}
    streamed = await client.post(path, json=body | {"stream": True, "return_progress": True})
    for runs in traced(streamed).values():
        assert "".join(run["text"] for run in runs) == "abcd <think>e"
        assert [source for run in runs for source in [run["source"]] * len(run["text"])] == [
            source for text, source in RUNS for _ in text
        ]
    assert all(request.reports_origins for request in engine.requests)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_nothing_is_traced_unless_asked_for(client, engine, path, stream):
    engine.script = traces(*RUNS)
    response = await client.post(path, json=BODIES[path] | {"stream": stream})
    assert "draft_trace" not in response.text
    assert not any(request.reports_origins for request in engine.requests)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}),
    ],
)
async def test_other_endpoints_take_no_notice_of_a_trace(client, engine, path, body, stream):
    engine.script = traces(("abcd", "suffix"))
    response = await client.post(path, json=body | {"stream": stream, "draft": {"trace": True}})
    assert response.status_code == 200, response.text
    assert "suffix" not in response.text
    assert "draft_trace" not in response.text
