"""`reprise bench serve`: measure one or two servers under concurrent chats, and optionally the bare loop."""

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
from bench.child import BareLoop, MlxLmServer, OwnServer, exit_on_sigterm
from bench.errors import ArgumentsError, BenchError
from bench.load import CountTokens, RequestOptions, ServerUnderLoad
from bench.machine import describe_machine
from bench.measurement import Round
from bench.outputs import make_console
from bench.prompts import PromptMaker
from bench.report import as_json, print_report, round_text
from bench.summary import compare_servers, compare_with_bare_loop, num_failed, remarks, summarize
from config.settings import BUNDLED_MODEL

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench serve` to the parser."""
    parser.description = (
        "Send chats of equal length to a server, many at once, and report latency and throughput. "
        "Answers cannot end early (logit_bias forbids the end tokens), so all have the requested length. "
        "Prompts are random words, and no prompt is sent twice. Exit status 1 if any request failed."
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--url",
        metavar="URL",
        type=argument_types.url,
        help="Base URL of a running server. Default: start reprise serve.",
    )
    what.add_argument(
        "--url-model", metavar="NAME", help="Model name to send to it. Default: the first one it lists."
    )
    what.add_argument(
        "--api-key",
        metavar="KEY",
        type=argument_types.api_key,
        help="API key for --url. Default: the first key in REPRISE_API_KEY, which process lists do not show.",
    )
    what.add_argument(
        "--model",
        metavar="DIR",
        type=argument_types.model_folder,
        default=BUNDLED_MODEL,
        help="Model to serve; its tokenizer makes the prompts. With --url, the folder of the model "
        "served there. Default: the bundled model.",
    )
    what.add_argument(
        "--against",
        metavar="URL",
        type=_against,
        help="Base URL of a second server: gets the same load, alternating, and is compared. "
        f"{MlxLmServer.name} starts that one with --model.",
    )
    what.add_argument(
        "--against-model", metavar="NAME", help="Model name to send to it. Default: the first one it lists."
    )
    what.add_argument(
        "--against-api-key",
        metavar="KEY",
        type=argument_types.api_key,
        help="API key for --against. Default: none.",
    )
    what.add_argument(
        "--bare",
        action="store_true",
        help="Also run mlx_lm.stream_generate on the prompts of one stream, alternating, and compare.",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        metavar="N,...",
        type=argument_types.levels,
        default=(1, 2, 4, 8),
        help="Concurrent streams. Default: 1,2,4,8.",
    )
    load.add_argument(
        "--prompt-tokens",
        metavar="N",
        type=argument_types.count,
        default=256,
        help="Tokens of each prompt, with the chat template. Default: 256.",
    )
    load.add_argument(
        "--max-tokens",
        metavar="N",
        type=argument_types.count,
        default=128,
        help="Tokens of each answer. Default: 128.",
    )
    load.add_argument(
        "--requests",
        metavar="N",
        type=argument_types.count,
        help="Requests per level and round. Default: twice the streams, but at least 4.",
    )
    load.add_argument(
        "--rounds",
        metavar="N",
        type=argument_types.count,
        default=3,
        help="Measured rounds, after one warm-up round. Default: 3.",
    )
    load.add_argument(
        "--temperature",
        metavar="X",
        type=argument_types.temperature,
        default=0.0,
        help="Sampling temperature. Default: 0.",
    )
    load.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="Seed of the prompts; also sent with each request if the temperature is above 0. "
        "Default: a new seed, which is printed. With a repeated seed, a running server may have the prompts "
        "in its prefix cache.",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=argument_types.output_file,
        help="Write every request of every round to FILE.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Return 1 if a request or a server failed, 2 if the arguments cannot be combined."""
    try:
        _check(arguments)
        return _run(arguments)
    except BenchError as fault:
        print(f"reprise: {fault}", file=sys.stderr)
        return 2 if isinstance(fault, ArgumentsError) else 1


def _check(arguments: argparse.Namespace) -> None:
    if arguments.bare and 1 not in arguments.concurrency:
        raise ArgumentsError("--bare is compared at one stream; add 1 to --concurrency")
    if arguments.bare and arguments.temperature > 0:
        raise ArgumentsError("--bare decodes greedily; leave --temperature at 0")
    if arguments.requests and arguments.requests < max(arguments.concurrency):
        raise ArgumentsError(
            f"--requests is {arguments.requests}, too few for {max(arguments.concurrency)} concurrent streams"
        )
    for needed, flags in (
        ("against", ("against_model", "against_api_key")),
        ("url", ("url_model", "api_key")),
    ):
        for flag in flags:
            if getattr(arguments, flag) and not getattr(arguments, needed):
                raise ArgumentsError(f"--{flag.replace('_', '-')} needs --{needed}")
    if arguments.against == MlxLmServer.name and (arguments.against_model or arguments.against_api_key):
        raise ArgumentsError(
            f"--against {MlxLmServer.name} has a model and needs no key; leave out --against-model and "
            "--against-api-key"
        )
    if arguments.against and arguments.against == arguments.url:
        raise ArgumentsError(
            "--against and --url are the same server; its prefix cache would have every prompt"
        )


def _run(arguments: argparse.Namespace) -> int:
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    maker = PromptMaker(tokenizer, arguments.prompt_tokens, seed)
    options = RequestOptions(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed if arguments.temperature > 0 else None,
        forbidden_ids=tuple(sorted(tokenizer.eos_ids)),
    )
    machine = describe_machine()
    with exit_on_sigterm(), ExitStack() as children:
        servers = _servers(arguments, children, lambda text: len(tokenizer.encode(text)))
        bare_loop = children.enter_context(BareLoop(str(arguments.model))) if arguments.bare else None
        campaign = Campaign(
            arguments.concurrency, arguments.rounds, arguments.requests, options, servers, bare_loop
        )
        rounds = campaign.run(maker, _print_round)
    comparisons = compare_with_bare_loop(rounds, servers[0].name, BareLoop.name) if arguments.bare else []
    if arguments.against:
        comparisons = compare_servers(rounds, servers[0].name, servers[1].name) + comparisons
    lines, notes = summarize(rounds), remarks(rounds)
    if arguments.against and options.seed is not None:
        notes.append("requests had a seed; some servers, such as mlx_lm.server, do not batch those")
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
) -> list[ServerUnderLoad]:
    own_server = None if arguments.url else OwnServer(["--model", str(arguments.model), "--recalibrate"])
    url = children.enter_context(own_server).url if own_server else arguments.url
    key = None if own_server else arguments.api_key or _key_of_environment()
    model = arguments.url_model or first_model(url, "--url-model", key, "--api-key")
    servers = [
        ServerUnderLoad("reprise" if own_server else _name(url), url, model, count_tokens, api_key=key)
    ]
    if arguments.against == MlxLmServer.name:
        peer = children.enter_context(MlxLmServer(str(arguments.model)))
        servers.append(ServerUnderLoad(peer.name, peer.url, peer.model, count_tokens))
    elif arguments.against:
        url, key = arguments.against, arguments.against_api_key
        model = arguments.against_model or first_model(url, "--against-model", key, "--against-api-key")
        servers.append(ServerUnderLoad(_name(url), url, model, count_tokens, api_key=key))
    return servers


def _key_of_environment() -> str | None:
    """Return the first of the API keys that `reprise serve` would accept with this environment."""
    first = os.environ.get("REPRISE_API_KEY", "").partition(",")[0].strip()
    try:
        return argument_types.api_key(first) if first else None
    except argparse.ArgumentTypeError as fault:
        raise ArgumentsError(f"REPRISE_API_KEY: {fault}") from None


def _against(text: str) -> str:
    return text if text == MlxLmServer.name else argument_types.url(text)


def _name(url: str) -> str:
    return url.partition("://")[2]


def first_model(url: str, flag: str, api_key: str | None = None, key_flag: str = "--api-key") -> str:
    """Return the first model that a server lists.

    flag, key_flag: the flags to suggest in errors, for the model name and the key.
    Raises BenchError if the server cannot be reached, needs another key, or lists no model.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=30.0)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            wanted = "another API key" if api_key else "an API key"
            raise BenchError(f"{url} needs {wanted}; pass it with {key_flag}")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except httpx.ConnectError:
        raise BenchError(f"no server listens at {url}") from None
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
        raise BenchError(f"{url}/v1/models lists no model ({fault}); name one with {flag}") from None


def _print_round(one: Round) -> None:
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
