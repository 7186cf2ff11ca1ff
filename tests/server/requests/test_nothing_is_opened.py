"""No file path and no URL in a request is ever opened."""

import contextlib
import sys
from collections.abc import Iterator

import pytest

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TARGETS = (
    "/etc/hostname-of-nobody",
    "file:///etc/hostname-of-nobody",
    "http://127.0.0.1:9/hostname-of-nobody",
)
_EVENTS = ("open", "socket.connect", "socket.getaddrinfo", "urllib.Request", "subprocess.Popen", "os.listdir")
_seen: list[str] = []
_is_watching = False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _is_watching and event in _EVENTS:
        _seen.append(f"{event} {arguments}")


# Audit hooks cannot be removed.
sys.addaudithook(_watch)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Yield the list of what is opened inside the block."""
    global _is_watching
    _seen.clear()
    _is_watching = True
    try:
        yield _seen
    finally:
        _is_watching = False


def _user(content):
    return {"messages": [{"role": "user", "content": content}]}


def _bodies(target):
    hello = _user("hello")
    yield CHAT, hello | {"model": target}
    yield CHAT, _user(target)
    yield CHAT, _user([{"type": "image_url", "image_url": {"url": target}}])
    yield CHAT, _user([{"type": "file", "file": {"file_data": target, "filename": target}}])
    yield CHAT, _user([{"type": "file", "file": {"file_id": target}}])
    yield CHAT, _user([{"type": "input_audio", "input_audio": {"data": target, "format": "wav"}}])
    yield CHAT, hello | {"chat_template": target}
    yield CHAT, hello | {"chat_template_kwargs": {"chat_template": target}}
    yield CHAT, hello | {"chat_template_kwargs": {"documents": [{"url": target}], "path": target}}
    yield CHAT, hello | {"user": target, "metadata": {"file": target}, "prompt_cache_key": target}
    yield CHAT, hello | {"draft_model": target}
    yield CHAT, hello | {"draft": {"type": target}}
    yield CHAT, hello | {"tools": [{"type": "function", "function": {"name": "f", "description": target}}]}
    yield CHAT, hello | {"tools": [{"type": "mcp", "server_url": target}]}
    yield CHAT, hello | {"guided_json": {"$ref": target}}
    yield CHAT, hello | {"guided_json": {"$id": target, "$schema": target, "type": "object"}}
    yield CHAT, hello | {"guided_grammar": f'%import {target}\nstart: "a"'}
    schema = {"name": "s", "schema": {"$ref": f"{target}#/a"}}
    yield CHAT, hello | {"response_format": {"type": "json_schema", "json_schema": schema}}
    image = {"type": "image", "source": {"type": "url", "url": target}}
    yield MESSAGES, _user([image]) | {"model": "alias", "max_tokens": 5}
    document = {"type": "document", "source": {"type": "file", "file_id": target}}
    yield MESSAGES, _user([document]) | {"model": "alias", "max_tokens": 5}
    servers = [{"type": "url", "url": target, "name": "a"}]
    yield MESSAGES, hello | {"model": "alias", "max_tokens": 5, "mcp_servers": servers}
    for part in (
        {"type": "input_image", "image_url": target},
        {"type": "input_file", "file_url": target},
        {"type": "input_file", "file_id": target},
    ):
        yield RESPONSES, {"input": [{"role": "user", "content": [part]}]}
    yield RESPONSES, {"input": "hello", "previous_response_id": target}
    yield RESPONSES, {"input": "hello", "prompt": {"id": target}}
    yield RESPONSES, {"input": "hello", "tools": [{"type": "mcp", "server_url": target, "server_label": "a"}]}
    yield "/v1/completions", {"prompt": target, "suffix": target}
    yield "/v1/embeddings", {"input": target, "model": target}
    yield "/tokenize", {"content": target}
    yield "/v1/ngram-mod/save", {"file": target, "path": target}
    yield "/v1/ngram-mod/load", {"file": target, "path": target}


@pytest.mark.parametrize("target", TARGETS)
async def test_nothing_that_a_request_names_is_opened(client, target):
    # The first request imports modules, which opens files.
    await client.post(CHAT, json=_user("hello"))
    for path, body in _bodies(target):
        with watched() as seen:
            response = await client.post(path, json=body)
        assert response.status_code < 500, (path, body, response.text)
        assert not [event for event in seen if "of-nobody" in event or "socket" in event], (path, body)


@pytest.mark.parametrize("target", TARGETS)
async def test_nothing_that_a_path_names_is_opened(client, target):
    for path in ("/v1/models/", "/v1/responses/", "/", "/health?file=", "/v1/ngram-mod?file="):
        with watched() as seen:
            response = await client.get(f"{path}{target}")
        assert response.status_code < 500
        assert not [event for event in seen if "of-nobody" in event or "socket" in event], path


async def test_the_audit_hook_sees_what_is_opened(tmp_path):
    (tmp_path / "of-nobody").write_text("")
    with watched() as seen:
        (tmp_path / "of-nobody").read_text()
    assert any("of-nobody" in event for event in seen)
