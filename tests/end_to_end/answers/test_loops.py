"""An answer that repeats itself for ever ends by itself on the real server and the bundled model."""

import httpx

FOR_EVER = {"messages": [{"role": "user", "content": "B " * 50}], "temperature": 0}


def test_a_model_that_says_the_same_for_ever_is_stopped(server_url):
    plain, drafted = (
        httpx.post(
            f"{server_url}/v1/chat/completions", json=FOR_EVER | {"draft": {"type": kind}}, timeout=300
        ).json()
        for kind in ("none", "suffix")
    )
    for answer in (plain, drafted):
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["timings"]["stopped"] == "loop"
        assert 2048 <= answer["usage"]["completion_tokens"] < 3000
    assert drafted["choices"][0]["message"] == plain["choices"][0]["message"]
    assert drafted["timings"]["draft_n_accepted"] > 1000


def test_a_client_that_sets_a_limit_is_obeyed(server_url):
    answer = httpx.post(
        f"{server_url}/v1/chat/completions", json=FOR_EVER | {"max_tokens": 2500}, timeout=300
    ).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 2500)
    assert "stopped" not in answer["timings"]
