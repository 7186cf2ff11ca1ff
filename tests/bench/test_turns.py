"""`reprise bench turns` reports what the prefix cache saves, and that it changes nothing."""

import json

import pytest

from cli.main import main


def test_later_turns_find_what_earlier_ones_computed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "bench turns --prompt-tokens 300 --turns 2 --max-tokens 4 --repeats 1 --json"
    assert main(arguments.split()) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = found["turns"]
    assert found["equal"]
    assert first["num_cached_tokens"] == 0
    assert second["num_cached_tokens"] >= first["num_prompt_tokens"]
    assert found["after_restart"]["num_cached_tokens"] >= 256
