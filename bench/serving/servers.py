"""The servers of a comparison, already running or started for it."""

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from reprise.bench import options
from reprise.bench.experiment import ArgumentsError, BenchError
from reprise.bench.options import Flag
from reprise.config.loopback import takes_proxy

OWN, MLX_LM, LLAMA = "reprise", "mlx_lm.server", "llama-server"
PLAIN, UNCACHED, DRAFTING = f"{OWN}-none", f"{OWN}-uncached", f"{MLX_LM}-draft"
# Keys that the environment sets are switched off.
_SERVE = ("serve", "--api-key", "")
COMMANDS = {
    OWN: (sys.executable, "-m", "reprise", *_SERVE, "--model"),
    MLX_LM: (sys.executable, "-m", "mlx_lm", "server", "--model"),
    LLAMA: (LLAMA, "--parallel", "8", "-m"),
}
COMMANDS |= {PLAIN: COMMANDS[OWN], UNCACHED: COMMANDS[OWN], DRAFTING: COMMANDS[MLX_LM]}
"""The servers that can be started; a command lacks its model and its address."""
LOOPS = LOOP, DRAFTING_LOOP = "mlx_lm.generate", "mlx_lm.generate-draft"
"""mlx_lm's own loops, which `reprise bench serve` runs without a server."""


class Address(NamedTuple):
    """A server's address. url: without /v1. model: the name to request. headers: hold the API key, if any."""

    url: str
    model: str
    headers: dict[str, str]


def check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for a repeated name, a key of no server, or a missing --draft-model."""
    names = [name for name, _, _ in arguments.server]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentsError(f"--server: the name {name} is already taken")
    for name in (DRAFTING, DRAFTING_LOOP):
        if name in names and not arguments.draft_model:
            raise ArgumentsError(f"--server: {name} needs a --draft-model")
    for name, _ in arguments.server_key:
        if name not in names:
            raise ArgumentsError(f"--server-key: no --server is named {name}")


def addresses(
    arguments: argparse.Namespace, folder: Path, children: ExitStack, flags: Mapping[str, Sequence[str]]
) -> dict[str, Address]:
    """Return the address of each server, by name, after starting the servers that do not run yet.

    folder: the model for started servers. children: the exit stack that ends them. flags: more flags for
        them, by name.
    Raises BenchError if a server cannot be used.
    """
    keys, servers = dict(arguments.server_key), {}
    for name, url, model in arguments.server or [(OWN, None, None)]:
        if name in LOOPS:
            continue
        if url is None:
            command = [*COMMANDS[name], model or str(folder), *flags.get(name, ())]
            url = children.enter_context(run_server(name, command))
            # mlx_lm.server's list of models fails where none was ever downloaded.
            model = "default_model" if name in (MLX_LM, DRAFTING) else None
        headers = {"Authorization": f"Bearer {keys[name]}"} if name in keys else {}
        servers[name] = Address(url, model or _first_model(url, headers), headers)
    return servers


@contextmanager
def run_server(name: str, command: Sequence[str]) -> Iterator[str]:
    """Run a server while the context is open, and yield its URL once it answers.

    command: without --host and --port, which are added.
    Raises BenchError with the last line that the server printed if it exits before it answers.
    """
    exit_on_sigterm()
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


def exit_on_sigterm() -> None:
    """Raise SystemExit on SIGTERM, so that child processes are stopped when the benchmark is terminated."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def is_ready(url: str) -> bool:
    """Return whether a server answers /health with status 200."""
    try:
        trusts = takes_proxy(url, has_key=False)
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=trusts).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _first_model(url: str, headers: dict[str, str]) -> str:
    """Return the first model that a server lists."""
    try:
        trusts = takes_proxy(url, has_key=bool(headers))
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=30.0, trust_env=trusts)
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
        reason = str(fault).partition("\n")[0]
        raise BenchError(
            f"{url} lists no model ({reason}); name one with NAME=URL=MODEL, and a key with --server-key"
        ) from None


def _server(text: str) -> tuple[str, str | None, str | None]:
    """Return the name, the URL (None to start it here), and the model to request or serve."""
    name, _, rest = text.partition("=")
    if name in (*COMMANDS, *LOOPS) and "://" not in rest:
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
         f"{LLAMA}=FILE.gguf are started here. {LOOP} and {DRAFTING_LOOP} are mlx_lm's loops. May be "
         f"repeated; the first is what others are compared with. Default: {OWN}.", is_repeated=True),
    Flag("--server-key", _key, "NAME=KEY", [], "API key of a --server; may be repeated.", is_repeated=True),
)  # fmt: skip
