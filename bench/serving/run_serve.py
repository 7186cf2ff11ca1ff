"""`reprise bench serve`: load a server with chats and report latency and throughput.

Send chats of equal length to a server, many at once, and report latency and throughput. Answers cannot end
early (logit_bias forbids the end tokens), so all have the requested length. Prompts are random words, and no
prompt is sent twice. Exit status 1 if any request failed.
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Experiment, Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.processes import BareLoop, exit_on_sigterm
from bench.serving.servers import PromptMaker
from bench.serving.traffic import Loop, Peer, Question, RequestOptions
from bench.statistics import compare, percentiles
from bench.tables import Column

_WIDTH = 100
BARE = "bare loop"
QUANTITIES: dict[str, tuple[bool, traffic.Take]] = {
    "tokens/s": (True, traffic.throughput),
    "first token p50": (False, lambda rows: traffic.milliseconds(traffic.first_tokens_s(rows), 0.50)),
    "inter-token p50": (False, lambda rows: traffic.milliseconds(traffic.inter_tokens_s(rows), 0.50)),
    "inter-token p99": (False, lambda rows: traffic.milliseconds(traffic.inter_tokens_s(rows), 0.99)),
}
"""What is compared between servers: whether a higher figure is better, and the figure."""

ALONE: dict[str, tuple[bool, traffic.Take]] = {
    "decode tokens/s": (True, traffic.decode_speed),
    "request tokens/s": (True, traffic.request_speed),
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
        return " / ".join(f"{1000 * value:.{digits}f}" for value in (row[name] or {}).values()) or "none"

    return text


MODEL = Column("model", "model", is_key=True)
LEVELS = [
    Column("concurrency", "streams", is_key=True), Column("side", "server", is_key=True),
    Column("num_requests", "requests"),
    Column(lambda row: traffic.middle(row["tokens_per_s"]), "tokens/s", "1"),
    Column(lambda row: f"{min(row['tokens_per_s']):.1f} to {max(row['tokens_per_s']):.1f}",
           "lowest to\nhighest"),
    Column("num_failed", "failed"), Column("num_refused", "refused"), Column("num_ended_early", "early"),
    Column(_times("first_token_s", 0), "first token, ms\np50 / p95 / p99"),
    Column(_times("inter_token_s", 2), "inter-token, ms\np50 / p95 / p99"),
]  # fmt: skip
RATIOS = [
    Column("concurrency", "streams"), Column("quantity", "quantity"), Column("against", "against"),
    Column(lambda row: row["ratio"] and row["ratio"]["of_medians"], "ratio", "3"),
    Column(lambda row: tables.interval(row["ratio"] or {}, "lowest", "highest", 3), "per round"),
    Column(lambda row: "above 1" if row["higher_is_better"] else "below 1", "better"),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench serve` to the parser."""
    servers.add_arguments(parser)
    options.declare(
        parser,
        Flag("--bare", None, None, None,
             "Also run mlx_lm.stream_generate on the prompts of one stream, and compare."),
        Flag("--concurrency", options.levels, "N,...", (1, 2, 4, 8), "Concurrent streams."),
        Flag("--prompt-tokens", options.count, "N", 256, "Tokens of each prompt, with the chat template."),
        Flag("--seed", int, "N", None,
             "Seed of the prompts. Default: a new one, which is printed. With a repeated seed, a running "
             "server may have the prompts in its prefix cache."),
        Flag("--random-models", options.names, "A,B", (),
             "Serve random models of these architectures instead, of 4 to 6 million parameters."),
        Flag("--repetitive", None, None, None,
             "Make the random models such that each answer soon repeats itself, as drafts need."),
    )  # fmt: skip
    options.add_settings(parser, "draft_type", *options.MACHINES)
    options.add(parser, max_tokens=128, rounds=3, **options.OUTPUTS)


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Return 1 if a request or a server failed, 2 if the arguments cannot be combined."""
    if arguments.bare and 1 not in arguments.concurrency:
        raise ArgumentsError("--bare is compared at one stream; add 1 to --concurrency")
    if arguments.repetitive and not arguments.random_models:
        raise ArgumentsError("--repetitive makes random models; name them with --random-models")
    servers.check(arguments, [BARE] if arguments.bare else [])
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    record = document.new_document(arguments)
    rows: list[Row] = []
    comparisons: list[Row] = []
    with exit_on_sigterm(), ExitStack() as folders, outputs.Work() as work:
        for model in _models(arguments, folders):
            name = {"model": model.name} if arguments.random_models else {}
            found, compared_with = _serve(arguments, model, seed, work)
            rows += [row | name for row in found]
            comparisons += [row | name for row in compared_with]
    names = ("prompt_tokens", "max_tokens", "rounds")
    served = ", ".join(arguments.random_models) or arguments.model.resolve().name
    settings = {"model": served} | {name: getattr(arguments, name) for name in names}
    record["serve"] = {
        "settings": settings | {"seed": seed}, "levels": levels_of(rows), "comparisons": comparisons,
        "texts": equal_texts(rows), "notes": remarks(rows),
        "rows": [{name: row[name] for name in row if name != "text"} for row in rows],
    }  # fmt: skip
    console = outputs.make_console(_WIDTH)
    _print(console, record["serve"])
    outputs.finish(console, arguments, record, rows)
    return int(any(row["error"] is not None for row in rows))


def _models(arguments: argparse.Namespace, folders: ExitStack) -> Iterator[Path]:
    """Yield the folders of the models to serve, one after the other."""
    if not arguments.random_models:
        yield arguments.model
        return
    from bench.architectures.tiny_models import write_random_model

    folder = Path(folders.enter_context(tempfile.TemporaryDirectory()))
    for name in arguments.random_models:
        try:
            yield write_random_model(name, folder / name, arguments.repetitive)
        except ImportError:
            raise ArgumentsError(f"--random-models: mlx-lm has no architecture {name}") from None
        except ValueError as fault:
            raise ArgumentsError(f"--repetitive: {name} cannot be made so: {fault}") from None


def _serve(
    arguments: argparse.Namespace, model: Path, seed: int, work: outputs.Work
) -> tuple[list[Row], list[Row]]:
    """Measure all servers with one model; return the rows of all answers, and the comparisons."""
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(model)
    maker = PromptMaker(tokenizer, arguments.prompt_tokens, seed)
    request = RequestOptions(arguments.max_tokens, tuple(sorted(tokenizer.eos_ids)))
    rows: list[Row] = []
    loops: list[Peer] = []
    with ExitStack() as children:
        own = options.flags(arguments, "draft_type", *options.MACHINES)
        peers = servers.connect(arguments, model, children, tokenizer, own)
        for peer in peers:
            peer.find_model()
        if arguments.bare:
            bare = children.enter_context(BareLoop(str(model)))
            loops.append(Loop(BARE, bare, tokenizer.decode))
        for level in arguments.concurrency:
            at_level = [*peers, *(loops if level == 1 else [])]
            rows += _measure(at_level, maker, request, level, arguments.rounds, work)
    first, *others = [peer.name for peer in peers]
    comparisons = [
        one for level in arguments.concurrency for other in others
        for one in compared(rows, level, first, other, QUANTITIES)
    ]  # fmt: skip
    return rows, comparisons + [one for loop in loops for one in compared(rows, 1, first, loop.name, ALONE)]


def _measure(
    peers: Sequence[Peer],
    maker: PromptMaker,
    request: RequestOptions,
    level: int,
    num_rounds: int,
    work: outputs.Work,
) -> list[Row]:
    """Run the rounds of a level. In a round every peer gets the same prompts; every round has new ones."""
    cases: dict[str, tuple[int, list[Question]]] = {}
    work.weight += (num_rounds + 1) * max(4, 2 * level) * len(peers)
    for number in range(num_rounds + 1):
        cases[f"{level} {number}"] = number, [maker.make() for _ in range(max(4, 2 * level))]

    def arm(peer: Peer, case: tuple[int, list[Question]]) -> list[Row]:
        number, questions = case
        stage = f"round {number}" if number else "warm-up"
        work.begin(f"{level} stream{'s' * (level > 1)}, {stage}: {peer.name}")
        rows = [row | {"round": number, "concurrency": level} for row in peer.ask(questions, request, level)]
        work.advance(len(rows))
        return rows

    arms = {peer.name: lambda case, peer=peer: arm(peer, case) for peer in peers}
    return Experiment(arms, cases, 1, has_warm_up=lambda _: False, order="rotate").run()


def levels_of(rows: Sequence[Row]) -> list[Row]:
    """Return a row per server and level, over its measured rounds.

    tokens_per_s: throughput of each round. decode_tokens_per_s, request_tokens_per_s: per stream, medians
    over rounds. Percentiles are over all requests, or all tokens, of all rounds.
    num_failed, num_refused, num_ended_early: over all requests, warm-up included.
    """
    found = []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("model"), row["concurrency"], row["arm"]), []).append(row)
    for (model, level, side), everything in groups.items():
        measured = [row for row in everything if row["round"]]
        found.append({
            "side": side, "concurrency": level, "model": model, "num_requests": len(measured),
            "tokens_per_s": [one or 0.0 for one in traffic.by_round(everything, side, traffic.throughput)],
            "decode_tokens_per_s": traffic.middle(traffic.by_round(everything, side, traffic.decode_speed)),
            "request_tokens_per_s": traffic.middle(traffic.by_round(everything, side, traffic.request_speed)),
            "first_token_s": percentiles(traffic.first_tokens_s(measured)),
            "inter_token_s": percentiles(traffic.inter_tokens_s(measured)),
            "num_failed": len(everything) - len(traffic.good(everything)),
            "num_refused": sum(row["is_refused"] for row in everything),
            "num_ended_early": sum(_ended_early(row) for row in everything),
        })  # fmt: skip
    return found


def compared(
    rows: Sequence[Row], level: int, ours: str, theirs: str, quantities: dict[str, tuple[bool, traffic.Take]]
) -> list[Row]:
    """Compare two servers at one level."""
    of_level = [row for row in rows if row["concurrency"] == level]
    return [
        {"concurrency": level, "side": ours, "against": theirs, "quantity": quantity,
         "higher_is_better": is_better,
         "ratio": compare(*(traffic.by_round(of_level, name, take) for name in (ours, theirs)))}
        for quantity, (is_better, take) in quantities.items()
    ]  # fmt: skip


def equal_texts(rows: Sequence[Row]) -> list[Row]:
    """Count the answers whose text equals that of the first server to the same prompt, for each other one.

    Only requests that neither failed count, warm-up included. num_texts: those compared.
    """
    by_side: dict[str, dict[tuple[Any, ...], str]] = {}
    for row in rows:
        if row["error"] is None:
            key = tuple(row.get(name) for name in ("model", "concurrency", "round", "request"))
            by_side.setdefault(row["arm"], {})[key] = row["text"]
    first = rows[0]["arm"] if rows else ""
    expected = by_side.pop(first, {})
    return [
        {"side": side, "against": first, "num_texts": len(texts.keys() & expected.keys()),
         "num_equal": len(texts.items() & expected.items())}
        for side, texts in by_side.items()
    ]  # fmt: skip


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


def _print(console: Console, report: Mapping[str, Any]) -> None:
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    console.print(settings, highlight=False, markup=False)
    tables.print_rows(console, report["levels"], [MODEL, *LEVELS], group="concurrency")
    if report["comparisons"]:
        tables.print_rows(console, report["comparisons"], [MODEL, *RATIOS], group="concurrency")
    for one in report["texts"]:
        counted = f"{one['num_equal']} of {one['num_texts']}"
        console.print(f"texts of {one['side']}: {counted} equal those of {one['against']}", highlight=False)
    for sentence in NOTES:
        console.print(sentence, style="dim", highlight=False)
    for note in report["notes"]:
        console.print(f"! {note}", style="yellow", highlight=False, markup=False)
