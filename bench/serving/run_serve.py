"""`reprise bench serve`: load a server with chats and report latency and throughput.

Send chats of equal length to a server, many at once, and report latency and throughput. Answers cannot end
early (logit_bias forbids the end tokens), so all have the requested length. Prompts are random words, and no
prompt is sent twice. Exit status 1 if any request failed.
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.bare_loop import Loop
from bench.serving.processes import stopped_at_the_end
from bench.serving.traffic import Batch
from bench.statistics import percentiles
from bench.tables import Column

_WIDTH = 100
BARE = "bare loop"


def _percentile(times: Callable[[Sequence[Row]], list[tuple[float, float]]], name: str) -> traffic.Take:
    return lambda rows: (percentiles(times(rows)) or {}).get(name)


QUANTITIES: dict[str, tuple[bool, traffic.Take]] = {
    "tokens/s": (True, traffic.throughput),
    "first token p50": (False, _percentile(traffic.first_tokens_s, "p50")),
    "inter-token p50": (False, _percentile(traffic.inter_tokens_s, "p50")),
    "inter-token p99": (False, _percentile(traffic.inter_tokens_s, "p99")),
}
"""What is compared between servers: whether a higher figure is better, and the figure."""

ALONE: dict[str, tuple[bool, traffic.Take]] = {
    "decode tokens/s": (True, traffic.decode_speed),
    "request tokens/s": (True, traffic.throughput),
}
"""What is compared with the bare loop, at one stream."""

NOTES = (
    "tokens/s: all completion tokens divided by the wall time of a round; median, lowest and highest round.",
    "failed, refused, early: counts over all requests, warm-up included; refused (429) requests also failed.",
    "first token: time from opening the connection to the first text. inter-token: gap between two reads",
    "with text, divided among the tokens of the second read; each token counts once.",
    "ratio: of the medians over rounds. per round: lowest and highest ratio of a round.",
)


def _times(name: str, digits: int) -> Callable[[tables.Row], str]:
    return lambda row: " / ".join(f"{1000 * one:.{digits}f}" for one in (row[name] or {}).values()) or "none"


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
    served = ", ".join(arguments.random_models) or arguments.model.resolve().name
    settings = {name: getattr(arguments, name) for name in ("prompt_tokens", "max_tokens", "rounds")}
    report: dict[str, Any] = {"settings": {"model": served, **settings, "seed": seed}}
    report |= {"levels": [], "comparisons": [], "texts": []}
    rows: list[Row] = []
    with stopped_at_the_end() as folders, outputs.Work() as work:
        for model in _models(arguments, folders):
            found = _measured(arguments, model, seed, work)
            name = model.name if arguments.random_models else None
            for part, lines in summary(found).items():
                report[part] += [{"model": name, **line} for line in lines]
            rows += [{"model": name, **row} for row in found]
    shown = [{name: row[name] for name in row if name != "text"} for row in rows]
    record["serve"] = report | {"notes": remarks(rows), "rows": shown}
    console = outputs.make_console(_WIDTH)
    _print(console, record["serve"])
    outputs.finish(console, arguments, record, shown)
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


def _measured(arguments: argparse.Namespace, model: Path, seed: int, work: outputs.Work) -> list[Row]:
    """Ask all servers of one model; in a round every peer gets the same prompts, and every round has new ones."""
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(model)
    maker = servers.PromptMaker(tokenizer, arguments.prompt_tokens, seed)
    own = options.flags(arguments, "draft_type", *options.MACHINES)
    rows: list[Row] = []
    with ExitStack() as children:
        peers: list[traffic.Peer] = [
            *servers.connect(arguments, model, children, tokenizer, own, sorted(tokenizer.eos_ids))
        ]
        loops: list[traffic.Peer] = []
        if arguments.bare:
            loop = Loop(BARE, str(model), tokenizer, arguments.max_tokens, may_end=False)
            loops.append(children.enter_context(loop))
        for level in arguments.concurrency:
            batches = [
                Batch(number, level, [maker.make() for _ in range(max(4, 2 * level))])
                for number in range(arguments.rounds + 1)
            ]
            rows += traffic.ask_all([*peers, *(loops if level == 1 else [])], batches, work)
    return rows


def summary(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return figures of the servers at each level, ratios of the first one to others, and equal texts."""
    first, *others = dict.fromkeys(row["arm"] for row in rows)
    levels, comparisons = [], []
    for level in dict.fromkeys(row["concurrency"] for row in rows):
        at_level = [row for row in rows if row["concurrency"] == level]
        for side in dict.fromkeys(row["arm"] for row in at_level):
            levels.append({"side": side, "concurrency": level, **_figures(at_level, side)})
            for quantity, (is_better, take) in (ALONE if side == BARE else QUANTITIES).items():
                if side != first:
                    comparisons.append({
                        "concurrency": level, "side": first, "against": side, "quantity": quantity,
                        "higher_is_better": is_better, "ratio": traffic.ratio(at_level, first, side, take),
                    })  # fmt: skip
    texts = []
    for side in others:
        num_equal, num_texts = traffic.equal_texts(rows, side, first)
        texts.append({"side": side, "against": first, "num_texts": num_texts, "num_equal": num_equal})
    return {"levels": levels, "comparisons": comparisons, "texts": texts}


def _figures(rows: Sequence[Row], side: str) -> Row:
    """Return the figures of a server at one level; percentiles are over all measured rounds."""
    asked = [row for row in rows if row["arm"] == side]
    measured = [row for row in asked if row["round"]]
    return {
        "num_requests": len(measured),
        "tokens_per_s": [one or 0.0 for one in traffic.by_round(rows, side, traffic.throughput)],
        "decode_tokens_per_s": traffic.middle(traffic.by_round(rows, side, traffic.decode_speed)),
        "first_token_s": percentiles(traffic.first_tokens_s(measured)),
        "inter_token_s": percentiles(traffic.inter_tokens_s(measured)),
        "num_failed": len(asked) - len(traffic.good(asked)),
        "num_refused": sum(row["is_refused"] for row in asked),
        "num_ended_early": sum(_ended_early(row) for row in asked),
    }


def _ended_early(row: Row) -> bool:
    return bool(row["error"] is None and row["tokens"] < row["max_tokens"])


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return what affects how the figures are to be read, and in how many answers it was seen."""
    seen: Counter[str] = Counter()
    for row in rows:
        if row["error"] is not None:
            seen[f"{row['arm']}: failed: {row['error']}"] += 1
        elif row["counted_by"] == "text":
            seen[f"{row['arm']}: reported no usage; tokens were counted from the text"] += 1
        if _ended_early(row):
            seen[f"{row['arm']}: ended early, {row['tokens']} of {row['max_tokens']} tokens"] += 1
    return [f"{remark} ({count} request{'s' * (count > 1)})" for remark, count in seen.items()]


def _print(console: Console, report: Mapping[str, Any]) -> None:
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    console.print(settings, highlight=False, markup=False)
    tables.print_rows(console, report["levels"], [MODEL, *LEVELS], group="concurrency")
    if report["comparisons"]:
        tables.print_rows(console, report["comparisons"], [MODEL, *RATIOS], group="concurrency")
    for one in report["texts"]:
        of_model = f" with {one['model']}" if one["model"] else ""
        counted = f"{one['num_equal']} of {one['num_texts']} equal those of {one['against']}"
        console.print(f"texts of {one['side']}{of_model}: {counted}", highlight=False, markup=False)
    for sentence in NOTES:
        console.print(sentence, style="dim", highlight=False)
    for note in report["notes"]:
        console.print(f"! {note}", style="yellow", highlight=False, markup=False)
