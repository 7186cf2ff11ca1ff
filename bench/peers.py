"""The servers of a comparison, already running or started for it, as OpenAI-compatible peers."""

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from reprise.bench import options
from reprise.bench.experiment import ArgumentsError, BenchError
from reprise.bench.options import Flag
from reprise.bench.workloads import Turn
from reprise.config.loopback import takes_proxy

OWN, MLX_LM, LLAMA = "reprise", "mlx_lm.server", "llama-server"
PLAIN, UNCACHED, DRAFTING = f"{OWN}-none", f"{OWN}-uncached", f"{MLX_LM}-draft"
# Keys that the environment sets are switched off, and what earlier runs have left on the disk.
_SERVE = (
    sys.executable, "-m", "reprise", "serve", "--api-key", "", "--prefix-cache-dir", "none", "--model",
)  # fmt: skip
_MLX_LM = (sys.executable, "-m", "mlx_lm", "server", "--model")
COMMANDS = {
    OWN: _SERVE, PLAIN: _SERVE, UNCACHED: _SERVE, MLX_LM: _MLX_LM, DRAFTING: _MLX_LM,
    LLAMA: (LLAMA, "--parallel", "8", "-m"),
}  # fmt: skip
"""The servers that can be started; a command lacks its model and its address."""


def _server(text: str) -> tuple[str, str | None, str | None]:
    """Return the name, the URL (None to start it here), and the model to request or serve."""
    name, _, rest = text.partition("=")
    if name in COMMANDS and "://" not in rest:
        return name, None, str(Path(rest).expanduser()) if rest else None
    address, _, model = rest.partition("=")
    if not name or not address:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=URL, such as other=http://127.0.0.1:8080")
    return name, options.url(address), model or None


def _key(text: str) -> tuple[str, str]:
    name, _, key = text.partition("=")
    return name, options.api_key(key)


FLAGS = (
    Flag("--server", _server, "NAME=URL[=MODEL]", [],
         f"A running server; MODEL defaults to the first that it lists. {OWN}, {PLAIN} (without drafts), "
         f"{UNCACHED} (without a prefix cache), {MLX_LM}, {DRAFTING} (with --draft-model) and "
         f"{LLAMA}=FILE.gguf are started here. May be repeated; the first is what others are compared with. "
         f"Default: {OWN}.", is_repeated=True),
    Flag("--server-key", _key, "NAME=KEY", [], "API key of a --server; may be repeated.", is_repeated=True),
)  # fmt: skip


@dataclass(slots=True)
class Answer:
    """A peer's answer to one turn. error: why the request failed; None if it did not.

    started_s: seconds from the start of the batch to the request. duration_s: from the request to the end of
    the stream. arrivals: [seconds since the request, tokens] of each read with text.
    """

    started_s: float = 0.0
    duration_s: float = 0.0
    tokens: int = 0
    arrivals: list[list[float]] = field(default_factory=list)
    text: str = ""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    error: str | None = None


Ask = Callable[[Sequence[Turn], int], list[Answer]]
"""Answers turns with limited concurrency, and returns the answers in order."""


def check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for a repeated name, a key of no server, or a missing --draft-model."""
    names = [name for name, _, _ in arguments.server]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ArgumentsError(f"--server: the name {repeated[0]} is already taken")
    if DRAFTING in names and not arguments.draft_model:
        raise ArgumentsError(f"--server: {DRAFTING} needs a --draft-model")
    if unknown := [name for name, _ in arguments.server_key if name not in names]:
        raise ArgumentsError(f"--server-key: no --server is named {unknown[0]}")


def start_peers(
    arguments: argparse.Namespace, folder: Path, end_ids: Sequence[int], children: ExitStack
) -> dict[str, Ask]:
    """Return all peers by name, after starting the servers that do not run yet.

    folder: the model for started servers. end_ids: its end tokens. children: the exit stack that ends them.
    Raises BenchError if a server cannot be used.
    """
    own = options.flags(arguments, "draft_type", "draft_model", *options.MACHINES)
    flags = {
        OWN: own, PLAIN: ["--draft-type", "none"], UNCACHED: [*own, "--prefix-cache-bytes", "0"],
        DRAFTING: ["--draft-model", str(arguments.draft_model)],
    }  # fmt: skip
    keys, peers = dict(arguments.server_key), dict[str, Ask]()
    for name, url, model in arguments.server or [(OWN, None, None)]:
        if url is None:
            command = [*COMMANDS[name], model or str(folder), *flags.get(name, ())]
            url = children.enter_context(run_server(name, command))
            # mlx_lm.server's list of models fails where none was ever downloaded.
            model = "default_model" if name in (MLX_LM, DRAFTING) else None
        client = children.enter_context(client_of(url, keys.get(name)))
        body = {"model": model or first_model(client), "max_tokens": arguments.max_tokens}
        peers[name] = partial(ask, client, body, end_ids)
    return peers


def client_of(url: str, key: str | None) -> httpx.Client:
    """Return a client that makes a new connection for each request."""
    # Fragments are timed as they come, so they must not be compressed.
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
    limits, trusts = httpx.Limits(max_keepalive_connections=0), takes_proxy(url, has_key=bool(key))
    return httpx.Client(base_url=url, headers=headers, timeout=600.0, limits=limits, trust_env=trusts)


@contextmanager
def run_server(name: str, command: Sequence[str]) -> Iterator[str]:
    """Run a server while the context is open, and yield its URL once it answers.

    command: without --host and --port, which are added.
    Raises BenchError with the last line that the server printed if it exits before it answers.
    """
    # So that the server is stopped when the benchmark is terminated.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, command = f"http://127.0.0.1:{port}", [*command, "--host", "127.0.0.1", "--port", str(port)]
    # A file, because a pipe would block the server when it is full.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except FileNotFoundError:
            raise BenchError(f"{name} is not installed, or not on PATH") from None
        try:
            while not is_ready(url):
                if server.poll() is not None:
                    log.seek(0)
                    *_, last = "no output", *filter(None, map(str.strip, log))
                    raise BenchError(f"{name} exited with status {server.returncode}: {last}")
                time.sleep(0.1)
            yield url
        finally:
            # Not SIGINT: a background job of a shell ignores it, and so does every process that it starts.
            server.terminate()
            server.wait()


def is_ready(url: str) -> bool:
    """Return whether a server answers /health with status 200."""
    try:
        trusts = takes_proxy(url, has_key=False)
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=trusts).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def first_model(client: httpx.Client) -> str:
    """Return the first model that a server lists."""
    try:
        return str(client.get("/v1/models").raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
        reason = str(fault).partition("\n")[0]
        raise BenchError(
            f"{str(client.base_url).rstrip('/')} lists no model ({reason}); name one with NAME=URL=MODEL, "
            "and a key with --server-key"
        ) from None


def ask(
    client: httpx.Client, body: dict[str, Any], end_ids: Sequence[int], turns: Sequence[Turn], streams: int
) -> list[Answer]:
    """Stream greedy chat completions, at most `streams` at the same time, each on a new connection."""
    began = perf_counter()
    with ThreadPoolExecutor(streams) as threads:
        received = threads.map(lambda turn: receive(client, body | _body_of(turn, end_ids)), turns)
    return [read_answer(*one, began=began) for one in received]


def _body_of(turn: Turn, end_ids: Sequence[int]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": turn.messages, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    if turn.tools:
        body["tools"] = turn.tools
    if turn.is_endless:
        body["logit_bias"] = {str(token): -100 for token in end_ids}
    return body


Lines = list[tuple[float, str]]
"""The lines of a response, each with its time as of perf_counter()."""


def receive(client: httpx.Client, body: dict[str, Any]) -> tuple[Lines, str | None]:
    """Send a request; return the lines of its response, the first and last of them empty, and an error.

    The client often shares two cores with the server, so lines are only parsed once all answers have ended.
    """
    lines, error = [(perf_counter(), "")], None
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = response.read()[:200].decode(errors="replace").strip()
                error = f"status {response.status_code}: {text}"
            else:
                lines += ((perf_counter(), line) for line in response.iter_lines())
    except httpx.ConnectError as fault:
        error = f"cannot connect: {fault}"
    except httpx.ReadTimeout:
        error = f"no data for {client.timeout.read:g} s"
    except httpx.HTTPError as fault:
        error = f"connection lost: {fault!r}"
    return [*lines, (perf_counter(), "")], error


def read_answer(lines: Lines, error: str | None, began: float) -> Answer:
    """Read the lines of a stream. Any error ends up in the answer; nothing is raised. began: of the batch."""
    start, usage, chunks = lines[0][0], dict[str, Any](), list[tuple[float, str]]()
    events = [(at, line[5:].strip()) for at, line in lines if line.startswith("data:")]
    end = next((at for at, event in events if event == "[DONE]"), lines[-1][0])
    for at, event in events if not error else ():
        if event == "[DONE]":
            break
        try:
            chunk = json.loads(event)
            if chunk.get("error"):
                error = error or f"error in the stream: {chunk['error']}"
            usage |= chunk.get("usage") or {}
            if text := "".join(map(_text, chunk.get("choices") or ())):
                chunks.append((at - start, text))
        except (ValueError, AttributeError, TypeError):
            error = error or f"not a chunk of a chat completion: {event[:80]!r}"
    else:
        error = error or "the stream ended without [DONE]"
    tokens = int(usage.get("completion_tokens", len(chunks)))
    return Answer(
        started_s=start - began, duration_s=end - start, tokens=0 if error else tokens,
        arrivals=arrivals_of(chunks, tokens), text="".join(text for _, text in chunks),
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"), error=error,
    )  # fmt: skip


def _text(choice: dict[str, Any]) -> str:
    """Return all text of a chunk's choice: content, reasoning, tool calls."""
    delta = choice.get("delta") or {}
    calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    texts = [delta.get(name) for name in ("content", "reasoning", "reasoning_content")]
    texts += [call.get(name) for call in calls for name in ("name", "arguments")]
    return "".join(text or "" for text in texts)


def arrivals_of(chunks: Sequence[tuple[float, str]], num_tokens: int) -> list[list[float]]:
    """Return [time, tokens] of each read, from its chunks.

    Tokens are divided in proportion to the lengths of texts, unless there are as many chunks as tokens.
    """
    whole = sum(len(text) for _, text in chunks)
    found: list[list[float]] = []
    for at, (time_s, text) in enumerate(chunks):
        count = 1.0 if len(chunks) == num_tokens else num_tokens * len(text) / whole
        # Chunks of one read follow each other faster than any model makes tokens.
        if at and time_s - chunks[at - 1][0] < 0.0002:
            found[-1][1] += count
        else:
            found.append([time_s, count])
    return found
