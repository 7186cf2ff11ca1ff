"""Clients that would hold up others, all at once, from a process of their own.

    python -m tests.end_to_end.trouble.attackers URL SECONDS

The server has the models one and three beside its own, and may load and unload them. Prints a line for each
attacker: how often it did what it does. To add one, add a function to ATTACKERS.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

Attack = Callable[[str], None]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
PATIENCE_S = 60
JSON = {"Content-Type": "application/json"}
_MEMBERS = json.dumps({f"key{number}": 0 for number in range(500_000)}).encode()
_TEXT = json.dumps({"prompt": "\N{GRINNING FACE}" + "a" * (31 * 2**20)}, ensure_ascii=False).encode()
_SHORT = {"role": "user", "content": "go on"}
_CONVERSATION = json.dumps({"model": "demo", "messages": [_SHORT] * 4096}).encode()
_STORED = [{"role": "user", "content": f"line {number}"} for number in range(300)]
_PIECES = json.dumps({"content": "word " * 160_000, "with_pieces": True, "return_token_strs": True}).encode()
_IDS = json.dumps({"model": "demo", "prompt": [5] * 900_000}).encode()
_CHUNKS = b"1\r\na\r\n" * 10**6
_PROSE = {"model": "demo", "prompt": "the lemon granite jungle " * 20_000, "max_tokens": 1}
_TRUNCATED = json.dumps(_PROSE | {"truncate_prompt_tokens": 100}).encode()
_EMOJI = "\N{GRINNING FACE}" * 60_000
_COUNTED = json.dumps({"model": "demo", "messages": [{"role": "user", "content": _EMOJI}]}).encode()
_OTHERS = ("one", "three")
_PIPELINE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000


def connected(url: str) -> socket.socket:
    """Return a connection to the server."""
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=PATIENCE_S)


def head(path: str, *more: str) -> bytes:
    """Return the head of a POST of JSON."""
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def post(url: str, path: str, body: bytes) -> httpx.Response:
    """Send a body and read the answer."""
    return httpx.post(url + path, content=body, headers=JSON, timeout=PATIENCE_S)


def one_byte_chunks(url: str) -> None:
    """Send a body in one-byte chunks, until that is refused."""
    with connected(url) as connection, suppress(ConnectionError):
        connection.sendall(head(COMPLETIONS, "Transfer-Encoding: chunked") + _CHUNKS)
        while connection.recv(65536):
            pass


def unknown_members(url: str) -> None:
    """Send half a million unknown members."""
    assert post(url, COMPLETIONS, _MEMBERS).status_code == 400


def item_references(url: str) -> None:
    """Refer four thousand times to an item of a long stored response."""
    body = {"model": "demo", "input": _STORED, "truncation": "auto", "max_output_tokens": 1}
    answer = post(url, RESPONSES, json.dumps(body).encode())
    if answer.status_code != 200:
        return
    first = f"{url}{RESPONSES}/{answer.json()['id']}/input_items"
    listed = httpx.get(first, timeout=PATIENCE_S).json()["data"]
    references = [{"type": "item_reference", "id": listed[0]["id"]}] * 4000
    post(url, RESPONSES, json.dumps({"model": "demo", "input": references}).encode())


def unread_pieces(url: str) -> None:
    """Ask for the pieces of long texts ten times, and read nothing for a while."""
    connections = [connected(url) for _ in range(10)]
    for connection in connections:
        connection.sendall(head("/tokenize", f"Content-Length: {len(_PIECES)}") + _PIECES)
    time.sleep(5)
    for connection in connections:
        connection.close()


def read_pieces(url: str) -> None:
    """Ask for the pieces of a long text, and read them."""
    assert post(url, "/tokenize", _PIECES).status_code in (200, 400)


def long_texts(url: str) -> None:
    """Send a text of 31 MiB as a prompt."""
    assert post(url, COMPLETIONS, _TEXT).status_code == 400


def long_conversations(url: str) -> None:
    """Send as many messages as a conversation may have."""
    assert post(url, CHAT, _CONVERSATION).status_code in (400, 429)


def many_ids(url: str) -> None:
    """Send nearly a million token ids as a prompt."""
    assert post(url, COMPLETIONS, _IDS).status_code == 400


def pipelining(url: str) -> None:
    """Send thousands of requests without reading an answer."""
    with connected(url) as connection, suppress(ConnectionError):
        connection.sendall(_PIPELINE)
        while connection.recv(65536):
            pass


def slow_heads(url: str) -> None:
    """Send the heads of fifty requests slowly, and leave."""
    connections = [connected(url) for _ in range(50)]
    for byte in head(COMPLETIONS)[:60]:
        for connection in connections:
            connection.sendall(bytes([byte]))
        time.sleep(0.05)
    for connection in connections:
        connection.close()


def truncated_prompts(url: str) -> None:
    """Send prompts of which only the end is kept, four at once."""
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: post(url, COMPLETIONS, _TRUNCATED).status_code, range(4)))
    assert set(found) <= {200, 400, 429, 503}, found


def left_prompts(url: str) -> None:
    """Send such a prompt, and leave while it is encoded."""
    with connected(url) as connection:
        connection.sendall(head(COMPLETIONS, f"Content-Length: {len(_TRUNCATED)}") + _TRUNCATED)
        time.sleep(0.05)


def counted_emoji(url: str) -> None:
    """Have a text counted that is one word, and many tokens."""
    assert post(url, "/v1/messages/count_tokens", _COUNTED).status_code in (200, 400, 429, 503)


def tokenized_emoji(url: str) -> None:
    """Have a text tokenized that is one word, and many tokens."""
    body = json.dumps({"model": "demo", "content": _EMOJI}).encode()
    assert post(url, "/tokenize", body).status_code in (200, 400, 429, 503)


def grammars(url: str) -> None:
    """Ask for answers of schemas that take long to compile, another one each time."""
    name = f"p{time.monotonic_ns()}"
    texts = {
        f"{name}{at}": {"type": "string", "pattern": f"^[a-{'xyz'[at % 3]}]{{1,90}}$"} for at in range(90)
    }
    schema = {"type": "object", "properties": texts, "required": [*texts], "additionalProperties": False}
    body = {"model": "demo", "prompt": "a", "max_tokens": 1, "guided_json": schema}
    assert post(url, COMPLETIONS, json.dumps(body).encode()).status_code in (200, 400, 429, 503)


def patterns_at_once(url: str) -> None:
    """Ask for an answer of a grammar that takes minutes to compile."""
    patterns = " & ".join(f"/(.*{at}.{{0,4}})*/" for at in range(14))
    body = {"model": "demo", "prompt": "a", "max_tokens": 1, "guided_grammar": f"start: A\nA: {patterns}"}
    assert post(url, COMPLETIONS, json.dumps(body).encode()).status_code in (400, 429, 503)


def storm(url: str) -> None:
    """Load models, ask them, leave, and unload them, all at once."""

    def ask(name: str) -> None:
        body = {"model": name, "prompt": "a", "max_tokens": 200, "stream": True}
        with httpx.stream("POST", url + COMPLETIONS, json=body, timeout=PATIENCE_S) as response:
            next(response.iter_raw(), None)

    def change(what: str, name: str) -> None:
        post(url, f"/v1/models/{what}", json.dumps({"model": name}).encode())

    with ThreadPoolExecutor(6) as threads:
        for name in _OTHERS:
            threads.submit(change, "load", name)
            threads.submit(ask, name)
            threads.submit(change, "unload", name)
    for name in _OTHERS:
        change("unload", name)


ATTACKERS: tuple[Attack, ...] = (
    one_byte_chunks, unknown_members, item_references, unread_pieces, read_pieces, long_texts,
    long_conversations, many_ids, pipelining, slow_heads, truncated_prompts, left_prompts, counted_emoji,
    tokenized_emoji, grammars, patterns_at_once, storm,
)  # fmt: skip
"""Each does its attack once and returns. Who takes part in the run is here and nowhere else."""


def main(url: str, duration_s: float) -> int:
    """Repeat all attacks at once for some seconds, each at least once. Returns 1 after a wrong answer."""
    stop_at = time.monotonic() + duration_s
    counts = {attack.__name__: 0 for attack in ATTACKERS}
    faults: dict[str, str] = {}

    def repeat(attack: Attack) -> None:
        is_first = True
        while is_first or time.monotonic() < stop_at:
            is_first = False
            try:
                attack(url)
            # A connection that is closed on an attacker is no fault.
            except (httpx.HTTPError, OSError):
                time.sleep(0.2)
            except Exception as fault:  # noqa: BLE001 - reported
                faults[attack.__name__] = repr(fault)
                return
            counts[attack.__name__] += 1

    threads = [threading.Thread(target=repeat, args=(attack,)) for attack in ATTACKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, count in counts.items():
        print(f"{name}: {count} {faults.get(name, '')}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
