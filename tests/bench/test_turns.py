"""`reprise bench turns` reports what the prefix cache saves, and that it changes nothing."""

import json

from reprise.cli.main import main


def test_later_turns_find_what_earlier_ones_computed(tmp_path):
    file = tmp_path / "turns.json"
    arguments = "bench turns --prompt-tokens 300 --turns 2 --max-tokens 4 --repeats 1 --json"
    assert main([*arguments.split(), str(file)]) == 0
    found = json.loads(file.read_text())["turns"]
    first, second, restarted = found["rows"]
    assert found["equal"]
    assert first["num_cached_tokens"] == 0
    assert second["num_cached_tokens"] >= first["num_prompt_tokens"]
    assert restarted["num_cached_tokens"] >= 256
