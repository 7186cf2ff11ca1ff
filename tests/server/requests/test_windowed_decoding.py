"""Fields for windowed decoding reach the engine, and are refused by name where they mean nothing."""

from dataclasses import replace

import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.events import Usage
from reprise.engine.interface.request import WindowSettings
from reprise.server.errors import BadRequestError
from reprise.server.generation.prepare import Prompts, make_engine_requests
from reprise.server.output.presenter import measure_timings
from reprise.server.requests.completions import CompletionRequest

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
ASKED = [{"role": "user", "content": "hello"}]
BODIES = {
    CHAT: {"messages": ASKED},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": ASKED, "max_tokens": 9, "model": "alias"},
}
FIELDS = {
    "wedlm_decoding": "streaming",
    "wedlm_window_size": 8,
    "wedlm_entropy_threshold": 0.7,
    "wedlm_pos_penalty_factor": 0.2,
    "wedlm_anchor": True,
}


def choose(info, settings=None, **body):
    """Return how a request with these fields is decoded in windows. settings: those of the server."""
    settings = Settings(**(settings or {}))
    (asked,) = make_engine_requests(
        "r", CompletionRequest(prompt="a", **body), Prompts([(1,)]), info, settings
    )
    return asked.window_settings


@pytest.fixture
def wedlm(engine):
    """The facts of a WeDLM model."""
    return replace(engine.info, mask_token_id=7, can_decode_windows=True)


@pytest.mark.parametrize("path", BODIES)
async def test_the_fields_reach_the_engine(client, engine, wedlm, path):
    engine.info = wedlm
    response = await client.post(path, json=BODIES[path] | FIELDS)
    assert response.status_code == 200, response.text
    assert [request.window_settings for request in engine.requests] == [
        WindowSettings(7, 8, 0.7, 0.2, has_anchor=True)
    ]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("path", BODIES)
async def test_another_model_leaves_each_field_out_or_refuses_it(client, strict_client, path, name):
    body = BODIES[path] | {name: FIELDS[name]}
    answered = await client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    assert answered.headers["x-reprise-ignored"] == name
    response = await strict_client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert f"'{name}' is for WeDLM models" in response.json()["error"]["message"]


@pytest.mark.parametrize("size", [0, -1, 1.5, "8"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_window_that_is_no_positive_number_is_refused_by_name(client, engine, wedlm, path, size):
    engine.info = wedlm
    response = await client.post(path, json=BODIES[path] | FIELDS | {"wedlm_window_size": size})
    assert response.status_code == 400, response.text
    assert "wedlm_window_size" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wedlm_decoding", "lossless"),
        ("wedlm_entropy_threshold", -0.1),
        ("wedlm_entropy_threshold", "all"),
        ("wedlm_pos_penalty_factor", -1),
        ("wedlm_anchor", 1),
    ],
)
async def test_a_wrong_value_is_refused_by_name(client, engine, wedlm, name, value):
    engine.info = wedlm
    response = await client.post(CHAT, json=BODIES[CHAT] | FIELDS | {name: value})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize(
    ("settings", "body", "wanted"),
    [
        ({}, {}, None),
        ({}, {"wedlm_decoding": "off"}, None),
        ({}, {"wedlm_decoding": "streaming"}, WindowSettings(7, 16, 0.3, 0.01)),
        ({"wedlm_decoding": "streaming"}, {}, WindowSettings(7, 16, 0.3, 0.01)),
        ({"wedlm_decoding": "streaming"}, {"wedlm_decoding": "off"}, None),
        ({"wedlm_decoding": "streaming"}, {"wedlm_window_size": 4}, WindowSettings(7, 4, 0.3, 0.01)),
        (
            {"wedlm_decoding": "streaming"},
            {"wedlm_entropy_threshold": "none"},
            WindowSettings(7, 16, None, 0.01),
        ),
        (
            {"wedlm_entropy_threshold": None},
            {"wedlm_decoding": "streaming"},
            WindowSettings(7, 16, None, 0.01),
        ),
        ({}, {"wedlm_decoding": "streaming", "wedlm_anchor": True}, WindowSettings(7, 16, 0.3, 0.01, True)),
        (
            {"wedlm_decoding": "streaming"},
            {"wedlm_anchor": False, "wedlm_entropy_threshold": 0, "wedlm_pos_penalty_factor": 0},
            WindowSettings(7, 16, 0, 0),
        ),
    ],
)
def test_what_a_request_leaves_out_is_as_the_settings_say(wedlm, settings, body, wanted):
    assert choose(wedlm, settings, **body) == wanted


@pytest.mark.parametrize(
    ("settings", "body", "param", "said"),
    [
        ({}, {"wedlm_window_size": 4}, "wedlm_window_size", "only with wedlm_decoding: streaming"),
        ({}, {"wedlm_anchor": False}, "wedlm_anchor", "only with wedlm_decoding: streaming"),
        ({}, FIELDS | {"wedlm_window_size": 17}, "wedlm_window_size", "is 17; at most 16 is allowed"),
        ({"exact": True}, FIELDS, "wedlm_decoding", "this server's answers are exact"),
    ],
)
def test_what_the_settings_do_not_allow_is_refused_by_name(wedlm, settings, body, param, said):
    with pytest.raises(BadRequestError, match=said) as refused:
        choose(wedlm, settings, **body)
    assert refused.value.param == param


def test_a_model_whose_caches_cannot_go_back_refuses_windowed_decoding(wedlm):
    with pytest.raises(BadRequestError, match="this model's caches do not support"):
        choose(replace(wedlm, can_decode_windows=False), **FIELDS)


def test_every_choice_streams_with_a_seed_of_its_own(wedlm):
    body = CompletionRequest(prompt="a", n=3, seed=5, **FIELDS)
    asked = make_engine_requests("r", body, Prompts([(1,)]), wedlm, Settings())
    assert len({one.window_settings for one in asked}) == 1
    assert len({one.sampling.seed for one in asked}) == 3


def test_timings_say_that_the_answer_may_differ():
    plain, in_windows = Usage(), Usage(window_settings=WindowSettings(7, 8, None, 0.2, has_anchor=True))
    assert "streaming" not in measure_timings([plain])
    assert measure_timings([in_windows])["streaming"] == {
        "window_size": 8,
        "entropy_threshold": None,
        "pos_penalty_factor": 0.2,
        "anchor": True,
        "note": "the answer may differ from that of plain decoding",
    }
