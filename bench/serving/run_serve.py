"""`reprise bench serve`: measure one or two servers under concurrent chats, and optionally the bare loop."""

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rich.console import Console

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Experiment, Row
from bench.serving import speeds
from bench.serving.processes import BareLoop, MlxLmServer, OwnServer, exit_on_sigterm
from bench.serving.prompts import PromptMaker
from bench.serving.traffic import CountTokens, Loop, Peer, Question, RequestOptions, Server, first_model
from bench.statistics import compare, percentiles
from bench.tables import Column
from config.settings import BUNDLED_MODEL

SUMMARY = "Load a server with chats and report latency and throughput."
_WIDTH = 100
QUANTITIES: dict[str, tuple[bool, speeds.Take]] = {
    "tokens/s": (True, speeds.throughput),
    "first token p50": (False, lambda rows: speeds.milliseconds(speeds.first_tokens_s(rows), 0.50)),
    "inter-token p50": (False, lambda rows: speeds.milliseconds(speeds.inter_tokens_s(rows), 0.50)),
    "inter-token p99": (False, lambda rows: speeds.milliseconds(speeds.inter_tokens_s(rows), 0.99)),
}
"""What is compared between servers: whether a higher figure is better, and the figure."""

ALONE: dict[str, tuple[bool, speeds.Take]] = {
    "decode tokens/s": (True, speeds.decode_speed),
    "request tokens/s": (True, speeds.request_speed),
}
"""What is compared with the bare loop, at one stream."""

NOTES = (
    "tokens/s: all completion tokens divided by the wall time of a round; median, lowest and highest round.",
    "failed, refused, early: counts over all requests, warm-up included; refused (429) requests also failed.",
    "first token: time from opening the connection to the first text. inter-token: gap between two reads",
    "with text, divided among the tokens of the second read; each token counts once.",
    "ratio: of the medians over rounds. per round: lowest and highest ratio of a round.",
)


def _times(name: str, digits: int) -> Any:
    def text(row: tables.Row) -> str:
        found = row[name]
        return (
            "none" if found is None else " / ".join(f"{1000 * value:.{digits}f}" for value in found.values())
        )

    return text


LEVELS = [
    Column("concurrency", "streams"),
    Column("side", "server"),
    Column("num_requests", "requests"),
    Column(lambda row: speeds.middle(row["tokens_per_s"]), "tokens/s", "1"),
    Column(
        lambda row: f"{min(row['tokens_per_s']):.1f} to {max(row['tokens_per_s']):.1f}", "lowest to\nhighest"
    ),
    Column("num_failed", "failed"),
    Column("num_refused", "refused"),
    Column("num_ended_early", "early"),
]
LATENCIES = [
    *LEVELS[:2],
    Column(_times("first_token_s", 0), "first token, ms\np50 / p95 / p99"),
    Column(_times("inter_token_s", 2), "inter-token, ms\np50 / p95 / p99"),
]
RATIOS = [
    Column("concurrency", "streams"),
    Column("quantity", "quantity"),
    Column("against", "against"),
    Column(lambda row: row["ratio"] and row["ratio"]["of_medians"], "ratio", "3"),
    Column(lambda row: tables.interval(row["ratio"] or {}, "lowest", "highest", 3), "per round"),
    Column(lambda row: "above 1" if row["higher_is_better"] else "below 1", "better"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench serve` to the parser."""
    parser.description = (
        "Send chats of equal length to a server, many at once, and report latency and throughput. "
        "Answers cannot end early (logit_bias forbids the end tokens), so all have the requested length. "
        "Prompts are random words, and no prompt is sent twice. Exit status 1 if any request failed."
    )
    add = parser.add_argument
    add("--url", metavar="URL", type=options.url,
        help="Base URL of a running server. Default: start reprise serve.")  # fmt: skip
    add("--url-model", metavar="NAME", help="Model name to send to it. Default: the first one it lists.")
    add("--api-key", metavar="KEY", type=options.api_key,
        help="API key for --url. Default: the first in REPRISE_API_KEY, which is better hidden.")  # fmt: skip
    add("--model", metavar="DIR", type=options.model_folder, default=BUNDLED_MODEL,
        help="Model to serve; its tokenizer makes the prompts. With --url, the folder of the model "
        "served there. Default: the bundled model.")  # fmt: skip
    add("--against", metavar="URL", type=_against,
        help="Base URL of a second server: gets the same load, alternating, and is compared. "
        f"{MlxLmServer.name} starts that one with --model.")  # fmt: skip
    add("--against-model", metavar="NAME", help="Model name to send to it. Default: the first one it lists.")
    add(
        "--against-api-key", metavar="KEY", type=options.api_key, help="API key for --against. Default: none."
    )
    add("--bare", action="store_true",
        help="Also run mlx_lm.stream_generate on the prompts of one stream, and compare.")  # fmt: skip
    add("--concurrency", metavar="N,...", type=options.levels, default=(1, 2, 4, 8),
        help="Concurrent streams. Default: 1,2,4,8.")  # fmt: skip
    add("--prompt-tokens", metavar="N", type=options.count, default=256,
        help="Tokens of each prompt, with the chat template. Default: 256.")  # fmt: skip
    add("--requests", metavar="N", type=options.count,
        help="Requests per level and round. Default: twice the streams, but at least 4.")  # fmt: skip
    add("--temperature", metavar="X", type=options.number(0, 2), default=0.0,
        help="Sampling temperature. Default: 0.")  # fmt: skip
    add("--seed", metavar="N", type=int,
        help="Seed of the prompts; also sent with each request if the temperature is above 0. "
        "Default: a new seed, which is printed. With a repeated seed, a running server may have the prompts "
        "in its prefix cache.")  # fmt: skip
    options.add(parser, max_tokens=128, rounds=3, **options.OUTPUTS)


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Return 1 if a request or a server failed, 2 if the arguments cannot be combined."""
    return outputs.run_command("reprise", _run, arguments)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.bare and 1 not in arguments.concurrency:
        raise ArgumentsError("--bare is compared at one stream; add 1 to --concurrency")
    if arguments.bare and arguments.temperature > 0:
        raise ArgumentsError("--bare decodes greedily; leave --temperature at 0")
    most = max(arguments.concurrency)
    if arguments.requests and arguments.requests < most:
        raise ArgumentsError(f"--requests is {arguments.requests}, too few for {most} concurrent streams")
    needs = {"against_model": "against", "against_api_key": "against", "url_model": "url", "api_key": "url"}
    for flag, needed in needs.items():
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
    _check(arguments)
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    maker = PromptMaker(tokenizer, arguments.prompt_tokens, seed)
    request_seed = arguments.seed if arguments.temperature > 0 else None
    request = RequestOptions(
        arguments.max_tokens, arguments.temperature, request_seed, tuple(sorted(tokenizer.eos_ids))
    )
    record = document.new_document(arguments)
    with exit_on_sigterm(), ExitStack() as children:
        peers: list[Peer] = [*_servers(arguments, children, lambda text: len(tokenizer.encode(text)))]
        names = [peer.name for peer in peers]
        bare = children.enter_context(BareLoop(str(arguments.model))) if arguments.bare else None
        rows: list[Row] = []
        for level in arguments.concurrency:
            at_level = [*peers, Loop(BareLoop.name, bare, tokenizer.decode)] if bare and level == 1 else peers
            rows += _measure(at_level, maker, request, level, arguments)
    comparisons = [c for level in arguments.concurrency for c in compared(rows, level, names, QUANTITIES)]
    if bare:
        comparisons += compared(rows, 1, [names[0], BareLoop.name], ALONE)
    notes = remarks(rows)
    if arguments.against and request_seed is not None:
        notes.append("requests had a seed; some servers, such as mlx_lm.server, do not batch those")
    settings = {
        name: getattr(arguments, name) for name in ("prompt_tokens", "max_tokens", "temperature", "rounds")
    }
    settings = {"model": arguments.model.resolve().name} | settings | {"seed": seed}
    settings |= {"requests": arguments.requests} if arguments.requests else {}
    section = {
        "settings": settings, "levels": levels_of(rows), "comparisons": comparisons, "notes": notes,
        "rounds": _rounds(rows),
    }  # fmt: skip
    record["serve"] = section
    _print(outputs.make_console(_WIDTH), record)
    outputs.write(arguments, record, rows)
    return int(any(row["error"] is not None for row in rows))


def _measure(
    peers: Sequence[Peer],
    maker: PromptMaker,
    request: RequestOptions,
    level: int,
    arguments: argparse.Namespace,
) -> list[Row]:
    """Run the rounds of a level. In a round every peer gets the same prompts; every round has new ones."""
    count = arguments.requests or max(4, 2 * level)
    cases: dict[str, tuple[int, list[Question]]] = {}
    for number in range(arguments.rounds + 1):
        made = [maker.make() for _ in range(count)]
        cases[f"{level} {number}"] = number, [Question(tuple(one.messages), one.ids) for one in made]

    def arm(peer: Peer, case: tuple[int, list[Question]]) -> list[Row]:
        number, questions = case
        rows = [row | {"round": number, "concurrency": level} for row in peer.ask(questions, request, level)]
        print(_round_text(peer.name, level, number, rows), file=sys.stderr, flush=True)
        return rows

    arms = {peer.name: lambda case, peer=peer: arm(peer, case) for peer in peers}
    return Experiment(arms, cases, 1, has_warm_up=lambda _: False, order="rotate").run()


def _round_text(side: str, level: int, number: int, rows: Sequence[Row]) -> str:
    speed, failed = speeds.throughput(rows), len(rows) - len(speeds.good(rows))
    words = ["1 stream" if level == 1 else f"{level} streams", f"round {number}" if number else "warm-up"]
    text = f"{side}: {speed:.1f} tokens/s" if speed else f"{side}: no tokens"
    return ", ".join([*words, text]) + (f", {failed} failed" if failed else "")


def _rounds(rows: Sequence[Row]) -> list[Row]:
    """Return rows by round, as the JSON has them."""
    rounds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        rounds.setdefault((row["arm"], row["concurrency"], row["round"]), []).append(row)
    kept = [
        name for name in rows[0] if name not in ("arm", "case", "round", "concurrency", "text", "workload")
    ]
    return [
        {"side": side, "concurrency": level, "number": number,
         "wall_s": max(row["started_s"] + row["duration_s"] for row in of_round),
         "measurements": [{name: row[name] for name in kept} for row in of_round]}
        for (side, level, number), of_round in rounds.items()
    ]  # fmt: skip


def levels_of(rows: Sequence[Row]) -> list[Row]:
    """Return a row per server and level, over its measured rounds.

    tokens_per_s: throughput of each round. decode_tokens_per_s, request_tokens_per_s: per stream, medians
    over rounds. Percentiles are over all requests, or all tokens, of all rounds.
    num_failed, num_refused, num_ended_early: over all requests, warm-up included.
    """
    found = []
    for level, side in dict.fromkeys((row["concurrency"], row["arm"]) for row in rows):
        everything = [row for row in rows if (row["concurrency"], row["arm"]) == (level, side)]
        measured = [row for row in everything if row["round"]]
        firsts, gaps = (
            percentiles(take(measured)) for take in (speeds.first_tokens_s, speeds.inter_tokens_s)
        )
        found.append({
            "side": side, "concurrency": level, "num_requests": len(measured),
            "tokens_per_s": [speed or 0.0 for speed in speeds.by_round(everything, side, speeds.throughput)],
            "decode_tokens_per_s": speeds.middle(speeds.by_round(everything, side, speeds.decode_speed)),
            "request_tokens_per_s": speeds.middle(speeds.by_round(everything, side, speeds.request_speed)),
            "first_token_s": asdict(firsts) if firsts else None,
            "inter_token_s": asdict(gaps) if gaps else None,
            "num_failed": len(everything) - len(speeds.good(everything)),
            "num_refused": sum(row["is_refused"] for row in everything),
            "num_ended_early": sum(_ended_early(row) for row in everything),
        })  # fmt: skip
    return found


def compared(
    rows: Sequence[Row], level: int, names: Sequence[str], quantities: dict[str, tuple[bool, speeds.Take]]
) -> list[Row]:
    """Compare the first of two sides with the second at one level."""
    of_level = [row for row in rows if row["concurrency"] == level]
    found = []
    for quantity, (is_higher, take) in quantities.items() if len(names) > 1 else ():
        ratio = compare(*(speeds.by_round(of_level, name, take) for name in names[:2]))
        found.append({
            "concurrency": level, "side": names[0], "against": names[1], "quantity": quantity,
            "higher_is_better": is_higher, "ratio": asdict(ratio) if ratio else None,
        })  # fmt: skip
    return found


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return remarks on answers that affect how the figures are to be read."""
    seen = Counter((row["arm"], remark) for row in rows for remark in _remarks(row))
    return [
        f"{side}: {remark} ({'1 request' if count == 1 else f'{count} requests'})"
        for (side, remark), count in seen.items()
    ]


def _ended_early(row: Row) -> bool:
    return bool(row["error"] is None and row["tokens"] < row["max_tokens"])


def _remarks(row: Row) -> list[str]:
    if row["error"] is not None:
        return [f"failed: {row['error']}"]
    remarks, tokens, most = [], row["tokens"], row["max_tokens"]
    if _ended_early(row):
        remarks.append(
            f"ended early, {tokens} of {most} tokens, {row['finish_reason'] or 'no finish reason'}"
        )
    if tokens > most:
        remarks.append(f"sent {tokens} tokens; the limit was {most}")
    if row["counted_by"] == "text":
        remarks.append("reported no usage; tokens were counted from the text")
    elif row["num_chunks"] > tokens:
        remarks.append("sent more text chunks than its usage counts tokens")
    if row["num_prompt_tokens"] not in (None, row["num_prompt_tokens_asked"]):
        remarks.append("counted other prompt tokens than --model's tokenizer; does it serve that model?")
    # All prompts share the first tokens of the chat template, so some cached tokens are expected.
    if (row["num_cached_tokens"] or 0) > row["num_prompt_tokens_asked"] // 4:
        remarks.append("took more than a quarter of a prompt from its prefix cache")
    return remarks


def _print(console: Console, record: document.Document) -> None:
    report = record["serve"]
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    console.print(settings, highlight=False, markup=False)
    outputs.print_machine(console, record)
    # Two tables, so that both fit a terminal of 80 columns.
    tables.print_rows(console, report["levels"], LEVELS, group="concurrency")
    tables.print_rows(console, report["levels"], LATENCIES, group="concurrency")
    if report["comparisons"]:
        tables.print_rows(console, report["comparisons"], RATIOS, group="concurrency")
    for sentence in NOTES:
        console.print(sentence, style="dim", highlight=False)
    for note in report["notes"]:
        console.print(f"! {note}", style="yellow", highlight=False, markup=False)


def _servers(arguments: argparse.Namespace, children: ExitStack, count_tokens: CountTokens) -> list[Server]:
    own_server = None if arguments.url else OwnServer(["--model", str(arguments.model), "--recalibrate"])
    url = children.enter_context(own_server).url if own_server else arguments.url
    key = None if own_server else arguments.api_key or _key_of_environment()
    model = arguments.url_model or first_model(url, "--url-model", key, "--api-key")
    servers = [Server("reprise" if own_server else _name(url), url, model, count_tokens, api_key=key)]
    if arguments.against == MlxLmServer.name:
        peer = children.enter_context(MlxLmServer(str(arguments.model)))
        servers.append(Server(peer.name, peer.url, peer.model, count_tokens))
    elif arguments.against:
        url, key = arguments.against, arguments.against_api_key
        model = arguments.against_model or first_model(url, "--against-model", key, "--against-api-key")
        servers.append(Server(_name(url), url, model, count_tokens, api_key=key))
    return servers


def _key_of_environment() -> str | None:
    """Return the first of the API keys that `reprise serve` would accept with this environment."""
    first = os.environ.get("REPRISE_API_KEY", "").partition(",")[0].strip()
    try:
        return options.api_key(first) if first else None
    except argparse.ArgumentTypeError as fault:
        raise ArgumentsError(f"REPRISE_API_KEY: {fault}") from None


def _against(text: str) -> str:
    return text if text == MlxLmServer.name else options.url(text)


def _name(url: str) -> str:
    return url.partition("://")[2]
