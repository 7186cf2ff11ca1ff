"""The servers of a comparison, running ones and those that are started for it, and prompts for them."""

import argparse
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench import options
from bench.errors import ArgumentsError, BenchError
from bench.options import Flag
from bench.serving.processes import LLAMA, MLX_LM, MLX_LM_MODEL, other_server, own_server
from bench.serving.traffic import Question, Server
from bench.workloads.words import ADJECTIVES, NOUNS, VERBS
from config.settings import BUNDLED_MODEL

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer


OWN = "reprise"
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
        help=f"API key of a --server; may be repeated. Default for {OWN}=URL: the first in REPRISE_API_KEY.",
    )  # fmt: skip
    options.declare(
        parser,
        Flag("--model", options.model_folder, "DIR", BUNDLED_MODEL,
             "The model that the servers serve: for those started here, and to count tokens. Default: the "
             "bundled model."),
        Flag("--timeout", options.count, "S", 120, "A request fails after this many seconds without data."),
    )  # fmt: skip


def check(arguments: argparse.Namespace, taken: Sequence[str] = ()) -> None:
    """Raise ArgumentsError for names that are not unique or unknown, and for a server that is named twice."""
    names, urls = [one[0] for one in arguments.server], [one[1] for one in arguments.server if one[1]]
    for name, count in Counter([*names, *taken]).items():
        if count > 1:
            raise ArgumentsError(f"--server: the name {name} is already taken")
    for url, count in Counter(urls).items():
        if count > 1:
            raise ArgumentsError(f"--server: {url} is given twice; its prefix cache would have every prompt")
    for name, _ in arguments.server_key:
        if name not in names:
            raise ArgumentsError(f"--server-key: no --server is named {name}")


def connect(
    arguments: argparse.Namespace,
    folder: Path,
    children: ExitStack,
    tokenizer: "Tokenizer",
    own: Sequence[str] = (),
) -> list[Server]:
    """Return all servers, after starting those that do not run yet.

    folder: the model that they serve. own: more flags of `reprise serve`.
    """
    keys, model = dict(arguments.server_key), str(folder)
    servers = []
    for name, url, served in arguments.server or [(OWN, None, None)]:
        key = keys.get(name)
        if name == OWN:
            key = key or (_key_of_environment() if url else None)
            if url is None:
                started = own_server(["--model", model, "--recalibrate", *own])
                url = children.enter_context(started).url
        elif url is None:
            url = children.enter_context(other_server(name, served or model)).url
            served = MLX_LM_MODEL if name == MLX_LM else None
        servers.append(
            Server(name, url, served, lambda text: len(tokenizer.encode_answer(text)),
                   float(arguments.timeout), key)
        )  # fmt: skip
    return servers


def _key_of_environment() -> str | None:
    """Return the first of the API keys that `reprise serve` would accept with this environment."""
    first = os.environ.get("REPRISE_API_KEY", "").partition(",")[0].strip()
    try:
        return options.api_key(first) if first else None
    except argparse.ArgumentTypeError as fault:
        raise ArgumentsError(f"REPRISE_API_KEY: {fault}") from None


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


_SHORT = ("able", "air", "all", "arm", "ask", "ball", "bed", "bird", "boy", "day", "deep", "dog", "ear")
_WORDS = [*NOUNS, *ADJECTIVES, *VERBS, *_SHORT]
_OPENING_WORDS, _TRIES = 4, 80


class PromptMaker:
    """Makes questions of random words, the same ones for the same seed.

    num_tokens: length of the whole prompt with the chat template, as servers report it. If no text of exactly
    this length is found, the closest shorter one is used.
    No two prompts begin with the same words, so a prefix cache can only reuse the chat template.
    Raises BenchError if the template leaves no room for words, or no unused first words are left.
    """

    def __init__(self, tokenizer: "Tokenizer", num_tokens: int, seed: int) -> None:
        self.num_tokens = num_tokens
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._openings: set[tuple[str, ...]] = set()
        template = len(self._prompt([]).ids)
        if num_tokens <= template:
            raise BenchError(
                f"--prompt-tokens is {num_tokens}, but the chat template alone takes {template}; ask for more"
            )

    def make(self) -> Question:
        """Return a prompt that begins unlike all earlier ones."""
        found: dict[tuple[str, ...], Question] = {}
        for _ in range(_TRIES):
            words, prompt = self._fill()
            opening = tuple(words[:_OPENING_WORDS])
            if words and opening not in self._openings:
                found[opening] = prompt
                if len(prompt.ids) == self.num_tokens:
                    break
        if not found:
            raise BenchError(f"no more distinct prompts of {self.num_tokens} tokens; use longer prompts")
        opening = max(found, key=lambda one: len(found[one].ids))
        self._openings.add(opening)
        return found[opening]

    def _fill(self) -> tuple[list[str], Question]:
        """Choose as many random words as fit, the last one so that the length is exact if possible."""
        # No word is shorter than a token.
        words = self._random.choices(_WORDS, k=self.num_tokens)
        counts = range(1, len(words) + 1)
        words = words[: bisect_right(counts, self.num_tokens, key=lambda n: len(self._prompt(words[:n]).ids))]
        prompt = self._prompt(words)
        for last in self._random.sample(_WORDS, _TRIES):
            if len(prompt.ids) == self.num_tokens:
                break
            longer = self._prompt([*words, last])
            if len(prompt.ids) < len(longer.ids) <= self.num_tokens:
                words, prompt = [*words, last], longer
        return words, prompt

    def _prompt(self, words: Sequence[str]) -> Question:
        message = {"role": "user", "content": " ".join(words)}
        return Question((message,), tuple(self._tokenizer.render_chat([message])))
