"""The servers of a comparison, running ones and those that are started for it, and prompts for them."""

import argparse
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench import options
from bench.errors import ArgumentsError, BenchError
from bench.options import Flag
from bench.serving.client import Server
from bench.serving.processes import COMMANDS, LLAMA, MLX_LM, OWN, run_server
from bench.serving.traffic import Ask, Question
from bench.workloads.words import ADJECTIVES, NOUNS, VERBS
from config.settings import BUNDLED_MODEL
from engine.text.tokenizer import Tokenizer

_MLX_LM_MODEL = "default_model"
"""What mlx_lm.server calls its model; its list of models fails where none was ever downloaded."""

Address = tuple[str, str | None, str | None]
"""Name, URL (None: it is started here), and the model to ask for, or the file to serve."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name servers and their model."""
    parser.add_argument(
        "--server", metavar="NAME=URL[=MODEL]", type=_server, action="append", default=[],
        help=f"A running server; MODEL defaults to the first that it lists. {OWN}, {MLX_LM} and "
        f"{LLAMA}=FILE.gguf are started here. May be repeated; the first is what others are compared with. "
        f"Default: {OWN}.",
    )  # fmt: skip
    parser.add_argument(
        "--server-key", metavar="NAME=KEY", type=_key, action="append", default=[],
        help="API key of a --server; may be repeated.",
    )  # fmt: skip
    options.declare(
        parser,
        Flag("--model", options.model_folder, "DIR", BUNDLED_MODEL,
             "The model that the servers serve, also those started here. Default: the bundled model."),
        Flag("--timeout", options.count, "S", 120, "A request fails after this many seconds without data."),
    )  # fmt: skip


def check(arguments: argparse.Namespace, taken: Sequence[str] = ()) -> None:
    """Raise ArgumentsError for names that are not unique or unknown."""
    names = [one[0] for one in arguments.server]
    for name, count in Counter([*names, *taken]).items():
        if count > 1:
            raise ArgumentsError(f"--server: the name {name} is already taken")
    for name, _ in arguments.server_key:
        if name not in names:
            raise ArgumentsError(f"--server-key: no --server is named {name}")


def connect(
    arguments: argparse.Namespace,
    folder: Path,
    children: ExitStack,
    own: Sequence[str] = (),
    forbidden_ids: Sequence[int] = (),
) -> dict[str, Ask]:
    """Return who asks each server, by name, after starting those that do not run yet.

    folder: the model that they serve. own: more flags of `reprise serve`. forbidden_ids: in all answers.
    Raises BenchError if a server cannot be used.
    """
    keys = dict(arguments.server_key)
    servers: dict[str, Ask] = {}
    for name, url, model in arguments.server or [(OWN, None, None)]:
        if url is None:
            command = [*COMMANDS[name], model or str(folder), *(own if name == OWN else ())]
            url = children.enter_context(run_server(name, command))
            model = _MLX_LM_MODEL if name == MLX_LM else None
        headers = {"Authorization": f"Bearer {keys[name]}"} if name in keys else {}
        model = model or _first_model(url, headers)
        server = Server(url, model, arguments.max_tokens, forbidden_ids, arguments.timeout, headers)
        servers[name] = server.ask
    return servers


def _first_model(url: str, headers: dict[str, str]) -> str:
    """Return the first model that a server lists."""
    try:
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=30.0)
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
        reason = str(fault).partition("\n")[0]
        raise BenchError(
            f"{url} lists no model ({reason}); name one with NAME=URL=MODEL, and a key with --server-key"
        ) from None


def _server(text: str) -> Address:
    """Parse NAME=URL, NAME=URL=MODEL, or a server that is started here."""
    name, _, rest = text.partition("=")
    if text in (MLX_LM, OWN):
        return text, None, None
    if name == LLAMA and rest.endswith(".gguf"):
        return name, None, str(options.input_file(rest))
    address, _, model = rest.partition("=")
    if not name or not address:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=URL, such as other=http://127.0.0.1:8080")
    return name, options.url(address), model or None


def _key(text: str) -> tuple[str, str]:
    name, _, key = text.partition("=")
    return name, options.api_key(key)


class PromptMaker:
    """Makes questions of random words, the same ones for the same seed.

    num_tokens: of the whole prompt with the chat template; where words have several, it may be a few less.
    Each begins with a number of its own, so that a prefix cache can reuse nothing but the chat template.
    """

    def __init__(self, tokenizer: Tokenizer, num_tokens: int, seed: int) -> None:
        self._tokenizer, self._num_tokens = tokenizer, num_tokens
        self._random = random.Random(seed)
        self._numbers = iter(self._random.sample(range(100_000, 1_000_000), 100_000))

    def make(self) -> Question:
        """Return a prompt that begins unlike all earlier ones.

        Raises BenchError if the chat template leaves no room for it.
        """
        # No word is shorter than a token.
        words = self._random.choices([*NOUNS, *ADJECTIVES, *VERBS], k=self._num_tokens)
        words[0] = str(next(self._numbers))
        counts = range(1, len(words) + 1)
        fitting = bisect_right(counts, self._num_tokens, key=lambda n: len(self._prompt(words[:n]).ids))
        if not fitting:
            raise BenchError(f"--prompt-tokens {self._num_tokens} is too short for the chat template")
        return self._prompt(words[:fitting])

    def _prompt(self, words: Sequence[str]) -> Question:
        message = {"role": "user", "content": " ".join(words)}
        return Question((message,), tuple(self._tokenizer.render_chat([message])))
