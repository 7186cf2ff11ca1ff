"""An answer that repeats itself for ever ends by itself on the real server and the bundled model."""

import httpx

FOR_EVER = {"messages": [{"role": "user", "content": "B " * 50}], "temperature": 0}


def answer_to(server_url, **options):
    """Return the server's answer to FOR_EVER."""
    return httpx.post(f"{server_url}/v1/chat/completions", json=FOR_EVER | options, timeout=300).json()


def test_a_model_that_says_the_same_for_ever_is_stopped(server_url):
    answer = answer_to(server_url, draft={"type": "suffix"})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["timings"]["stopped"] == "loop"
    # By the bundled model's own guard of 128 tokens.
    assert 128 <= answer["usage"]["completion_tokens"] < 300
    # How many depends on what steps are believed to cost, and so on the machine's load.
    assert answer["timings"]["draft_n_accepted"] > 0


def test_a_model_is_stopped_at_the_same_token_whether_it_drafts_or_not(server_url):
    drafted, plain = (
        answer_to(server_url, loop_guard_tokens=300, draft={"type": kind}) for kind in ("suffix", "none")
    )
    assert plain["timings"]["stopped"] == "loop"
    assert 300 <= plain["usage"]["completion_tokens"] < 1000
    assert drafted["choices"][0]["message"] == plain["choices"][0]["message"]
    assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_a_client_that_sets_a_limit_is_obeyed(server_url):
    # The guard would have ended it before 300.
    answer = answer_to(server_url, max_tokens=700)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 700)
    assert "stopped" not in answer["timings"]
