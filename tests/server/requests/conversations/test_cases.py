"""What agents and clients send is answered, by a real server on the bundled model: status, prompt and header.

The cases are in the JSON files beside this one: bodies as clients send them, in the forms that were seen.
"""

import json
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.conftest import serving

HERE = Path(__file__).parent
CASES = [
    case
    for name in ("chats", "completions", "messages", "responses")
    for case in json.loads((HERE / f"{name}.json").read_text())
]
LARGE = {"200 calls in one message", "1,024 tools", "300 tools", "seen: 150 tools"}
"""Their prompts are counted and not answered, which would take a minute of a small machine."""
COUNTED = {"/v1/chat/completions": "/tokenize", "/v1/messages": "/v1/messages/count_tokens"}
NAMED = "x-reprise-ignored"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server, and the file that it records prompts in."""
    folder = tmp_path_factory.mktemp("cases")
    names = ("--served-model-name", "reprise-demo", "--max-context-tokens", "65536")
    record = folder / "recorded.jsonl"
    with serving(folder, *names, "--default-max-tokens", "3", "--record", str(record)) as (address, _):
        yield address, record


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['path']} {case['name']}")
def test_what_a_client_sends_is_answered(server, case):
    address, record = server
    path, body = case["path"], case["body"]
    if case["name"] in LARGE:
        path, body = COUNTED[path], {key: body[key] for key in ("messages", "tools") if key in body}
    response = httpx.post(address + path, json=body, timeout=120)
    assert response.status_code == case["status"], response.text
    named = response.headers.get(NAMED, "")
    assert [path for path in case.get("ignored", ()) if path not in named] == []
    if case["status"] == 200 and path == case["path"] and "count" not in path:
        prompt = prompt_of(record, response.headers["x-request-id"])
        assert [text for text in case.get("prompt_has", ()) if text not in prompt] == []
        assert [text for text in case.get("prompt_lacks", ()) if text in prompt] == []


def prompt_of(record: Path, request_id: str) -> str:
    """Return the prompt that a request was recorded with, waiting for the thread that writes it."""
    whole = (
        one for _ in range(5000) for one in record.read_text().splitlines(keepends=True) if one[-1] == "\n"
    )
    return json.loads(next(line for line in whole if request_id in line))["prompt"]
