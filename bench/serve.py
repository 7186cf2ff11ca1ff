"""`reprise bench serve`: chats under load, on one server or on two in turns, beside the bare loop."""

import argparse
import json
import os
import random
import sys
from contextlib import ExitStack
from typing import Any

import httpx

from bench import argument_types
from bench.campaign import Campaign
from bench.child import BareLoop, OwnServer, terminated_like_interrupted
from bench.errors import ArgumentsError, BenchError
from bench.load import Asking, CountTokens, ServerSide
from bench.machine import describe_machine
from bench.measurement import Round
from bench.outputs import make_console
from bench.prompts import PromptMaker
from bench.report import as_json, print_report, round_text
from bench.summary import compare_servers, compare_with_bare_loop, num_failed, remarks, summarize
from config.settings import BUNDLED_MODEL

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench serve` takes."""
    parser.description = (
        "Send chats of equal length to a server, so many at once, and report latency and throughput. "
        "The end of an answer is forbidden (logit_bias), so that all have the length that was asked for. "
        "Prompts are random words, none of them twice. Status 1 if any request failed."
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--url",
        metavar="URL",
        type=argument_types.url,
        help="A running server. Default: start reprise serve.",
    )
    what.add_argument(
        "--url-model", metavar="NAME", help="Model name to send there. Default: the first it lists."
    )
    what.add_argument(
        "--api-key",
        metavar="KEY",
        type=argument_types.api_key,
        help="Key for the server of --url. Default: the first in REPRISE_API_KEY, which no process list has.",
    )
    what.add_argument(
        "--model",
        metavar="DIR",
        type=argument_types.model_folder,
        default=BUNDLED_MODEL,
        help="Model to serve, and whose tokenizer makes the prompts; with --url, the folder of the model "
        "served there. Default: the bundled one.",
    )
    what.add_argument(
        "--against",
        metavar="URL",
        type=argument_types.url,
        help="Another server: same load, in turns, and ratios.",
    )
    what.add_argument(
        "--against-model", metavar="NAME", help="Model name to send there. Default: the first it lists."
    )
    what.add_argument(
        "--against-api-key",
        metavar="KEY",
        type=argument_types.api_key,
        help="Key for that one. Default: none is sent.",
    )
    what.add_argument(
        "--bare",
        action="store_true",
        help="Also run mlx_lm.stream_generate by itself on the prompts of one stream, in turns, and ratios.",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        metavar="N,...",
        type=argument_types.levels,
        default=(1, 2, 4, 8),
        help="Streams at once. Default: 1,2,4,8.",
    )
    load.add_argument(
        "--prompt-tokens",
        metavar="N",
        type=argument_types.count,
        default=256,
        help="With the chat template. Default: 256.",
    )
    load.add_argument(
        "--max-tokens",
        metavar="N",
        type=argument_types.count,
        default=128,
        help="Of each answer. Default: 128.",
    )
    load.add_argument(
        "--requests",
        metavar="N",
        type=argument_types.count,
        help="Per level and round. Default: twice the streams, at least 4.",
    )
    load.add_argument(
        "--rounds",
        metavar="N",
        type=argument_types.count,
        default=3,
        help="After one that warms up. Default: 3.",
    )
    load.add_argument(
        "--temperature", metavar="X", type=argument_types.temperature, default=0.0, help="Default: 0."
    )
    load.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="Makes the same prompts again, and is sent with each request if the temperature is above 0. "
        "Default: a new one each time, which is printed; a running server may still hold the old prompts.",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=argument_types.output_file,
        help="Write every request of every round to FILE.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Returns 1 if a request or a server failed, 2 if the arguments do not fit."""
    try:
        _check(arguments)
        return _run(arguments)
    except BenchError as fault:
        print(f"reprise: {fault}", file=sys.stderr)
        return 2 if isinstance(fault, ArgumentsError) else 1


def _check(arguments: argparse.Namespace) -> None:
    if arguments.bare and 1 not in arguments.concurrency:
        raise ArgumentsError("--bare is compared with one stream; add 1 to --concurrency")
    if arguments.bare and arguments.temperature > 0:
        raise ArgumentsError("--bare decodes greedily; leave --temperature at 0")
    if arguments.requests and arguments.requests < max(arguments.concurrency):
        raise ArgumentsError(
            f"--requests is {arguments.requests}, too few for {max(arguments.concurrency)} streams at once"
        )
    for needed, flags in (
        ("against", ("against_model", "against_api_key")),
        ("url", ("url_model", "api_key")),
    ):
        for flag in flags:
            if getattr(arguments, flag) and not getattr(arguments, needed):
                raise ArgumentsError(f"--{flag.replace('_', '-')} needs --{needed}")
    if arguments.against and arguments.against == arguments.url:
        raise ArgumentsError("--against is the server of --url; its prefix cache would know every prompt")


def _run(arguments: argparse.Namespace) -> int:
    # Here, because it brings mlx-lm: wrong arguments are answered without it.
    from engine.model.mlx_lm_baseline import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    maker = PromptMaker(tokenizer, arguments.prompt_tokens, seed)
    asking = Asking(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed if arguments.temperature > 0 else None,
        forbidden_ids=tuple(sorted(tokenizer.eos_ids)),
    )
    machine = describe_machine()
    with terminated_like_interrupted(), ExitStack() as children:
        servers = _servers(arguments, children, lambda text: len(tokenizer.encode(text)))
        bare_loop = children.enter_context(BareLoop(str(arguments.model))) if arguments.bare else None
        campaign = Campaign(
            arguments.concurrency, arguments.rounds, arguments.requests, asking, servers, bare_loop
        )
        rounds = campaign.run(maker, _tell)
    comparisons = compare_with_bare_loop(rounds, servers[0].name, BareLoop.name) if arguments.bare else []
    if arguments.against:
        comparisons = compare_servers(rounds, servers[0].name, servers[1].name) + comparisons
    lines, notes = summarize(rounds), remarks(rounds)
    if arguments.against and asking.seed is not None:
        notes.append("--seed was sent; mlx_lm.server, for one, does not batch requests with a seed")
    settings = _settings(arguments, seed)
    console = make_console(_WIDTH)
    console.print(
        ", ".join(f"{name} {value}" for name, value in settings.items()), highlight=False, markup=False
    )
    print_report(console, machine, lines, comparisons, notes)
    if arguments.json:
        report = as_json(machine, settings, rounds, lines, comparisons, notes)
        arguments.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    return 1 if num_failed(rounds) else 0


def _servers(
    arguments: argparse.Namespace, children: ExitStack, count_tokens: CountTokens
) -> list[ServerSide]:
    own = None if arguments.url else OwnServer(["--model", str(arguments.model)])
    url = children.enter_context(own).url if own else arguments.url
    key = None if own else arguments.api_key or _key_of_environment()
    model = arguments.url_model or first_model(url, "--url-model", key, "--api-key")
    servers = [ServerSide("reprise" if own else _name(url), url, model, count_tokens, api_key=key)]
    if arguments.against:
        url, key = arguments.against, arguments.against_api_key
        model = arguments.against_model or first_model(url, "--against-model", key, "--against-api-key")
        servers.append(ServerSide(_name(url), url, model, count_tokens, api_key=key))
    return servers


def _key_of_environment() -> str | None:
    """The first key of those that `reprise serve` would take from there."""
    first = os.environ.get("REPRISE_API_KEY", "").partition(",")[0].strip()
    try:
        return argument_types.api_key(first) if first else None
    except argparse.ArgumentTypeError as fault:
        raise ArgumentsError(f"REPRISE_API_KEY: {fault}") from None


def _name(url: str) -> str:
    return url.partition("://")[2]


def first_model(url: str, flag: str, api_key: str | None = None, key_flag: str = "--api-key") -> str:
    """The first model that a server lists.

    flag, key_flag: what names the model where the server does not, and the key.
    Raises BenchError if it cannot be reached, wants another key, or lists none.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=30.0)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            wanted = "another key" if api_key else "a key"
            raise BenchError(f"{url} wants {wanted}; give it with {key_flag}")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except httpx.ConnectError:
        raise BenchError(f"nothing listens at {url}") from None
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
        raise BenchError(f"{url}/v1/models names no model ({fault}); give one with {flag}") from None


def _tell(one: Round) -> None:
    print(round_text(one), file=sys.stderr, flush=True)


def _settings(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    chosen = {
        "model": arguments.model.resolve().name,
        "prompt_tokens": arguments.prompt_tokens,
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "rounds": arguments.rounds,
    }
    if arguments.requests:
        chosen["requests"] = arguments.requests
    return chosen | {"seed": seed}
