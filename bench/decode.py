"""`reprise bench decode`: the same chats plainly and with drafts, in turns on one engine, tokens compared.

Runs the engine without HTTP. Before each run everything that drafters remember is forgotten, and no prefix
is kept, so that a run shows what one request gains from its own text; workloads with a chat before the
measured one show what memory adds. Times are of decoding: from the end of the prompt to the last token.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import argument_types
from bench.hindsight import best_speedup, best_width_speedup
from bench.local_engine import LocalEngine
from bench.machine import describe_machine
from bench.workloads import VERSION, WORKLOADS, Chat, Turn, lengths_of, make_chats
from config.settings import Settings
from engine.request import DraftChoice, GenerationRequest, Grammar, Sampling

_WIDTH = 140
FORBID = -1e9
FORCE, EVEN_OUT = 1e6, 1e4
"""Added to the only tokens allowed, and the temperature at which the model's own logits no longer count."""

DRAFT_TYPES = ("auto", "suffix", "ngram-simple", "ngram-mod", "draft-model")


@dataclass
class Run:
    """One measured answer of every stream. decode_s: until the last stream was done."""

    tokens: list[tuple[int, ...]]
    decode_s: float
    num_forwards: int
    num_drafted: int
    num_accepted: int


@dataclass
class Row:
    """A workload with one draft type against plain decoding; times are sums over cases of the best run."""

    workload: str
    draft_type: str
    streams: int
    num_tokens: int = 0
    num_plain_tokens: int = 0
    plain_s: float = 0.0
    drafted_s: float = 0.0
    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    is_equal: bool = True
    hindsight: list[float] = field(default_factory=list)
    best_width: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """What is printed and written, by name."""
        speedup = self.plain_s / self.drafted_s
        best = mean(self.hindsight) if self.hindsight else None
        best_width = mean(self.best_width) if self.best_width else None
        return {
            "workload": self.workload,
            "draft_type": self.draft_type,
            "streams": self.streams,
            "tokens": self.num_tokens,
            "tokens_per_forward": self.num_tokens / self.num_forwards,
            "acceptance": self.num_accepted / self.num_drafted if self.num_drafted else None,
            "plain_tps": self.num_plain_tokens / self.plain_s,
            "decode_tps": self.num_tokens / self.drafted_s,
            "speedup": speedup,
            "best_width_speedup": best_width,
            "of_best_width": speedup / best_width if best_width else None,
            "hindsight_speedup": best,
            "of_hindsight": speedup / best if best else None,
            "parity": "PASS" if self.is_equal else "FAIL",
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench decode` takes."""
    parser.description = (
        "Decode generated chats plainly and with drafts, in turns on one engine. Status 1 if any answer "
        "differs by a token. Workloads: "
        + "; ".join(f"{one.name}: {one.summary}" for one in WORKLOADS.values())
    )
    parser.add_argument("--model", type=argument_types.model_folder, help="Default: the bundled one.")
    parser.add_argument("--workloads", default="edits,records,quotes,passages,free,trap", metavar="NAMES")
    parser.add_argument("--draft-types", default="auto", metavar="NAMES", help=", ".join(DRAFT_TYPES))
    parser.add_argument("--cases", type=argument_types.count, default=8, help="Chats of each workload.")
    parser.add_argument("--repeats", type=argument_types.count, default=3, help="Measured runs of each chat.")
    parser.add_argument("--streams", type=argument_types.count, default=1, help="Chats decoded together.")
    parser.add_argument("--max-tokens", type=argument_types.count, default=256)
    parser.add_argument("--num-draft-tokens", type=argument_types.count, default=31)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=argument_types.output_file, metavar="FILE")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    workloads, draft_types = arguments.workloads.split(","), arguments.draft_types.split(",")
    for name, known in [(w, WORKLOADS) for w in workloads] + [(d, DRAFT_TYPES) for d in draft_types]:
        if name not in known:
            print(f"reprise bench decode: {name} is none of {', '.join(known)}", file=sys.stderr)
            return 2
    settings = Settings(
        model=str(arguments.model) if arguments.model else None,
        max_rows=max(8, arguments.streams),
        num_draft_tokens=arguments.num_draft_tokens,
        prefix_cache_bytes=0,
    )
    with LocalEngine(settings) as local:
        rows = measure(local, workloads, draft_types, arguments, console)
    machine = describe_machine()
    _print(console, rows, machine)
    if arguments.json:
        figures = [row.figures() for row in rows]
        arguments.json.write_text(
            json.dumps({"machine": machine, "workloads_version": VERSION, "rows": figures}, indent=2)
        )
    return int(not all(row.is_equal for row in rows))


def measure(
    local: LocalEngine,
    workloads: Sequence[str],
    draft_types: Sequence[str],
    arguments: argparse.Namespace,
    console: Console,
) -> list[Row]:
    """Every case of every workload: one run unmeasured, then plain and each draft type in turns."""
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("decoding", total=len(workloads) * arguments.cases)
        for workload in workloads:
            of_types = {name: Row(workload, name, arguments.streams) for name in draft_types}
            count = arguments.cases * arguments.streams
            length = lengths_of(workload)[0]
            chats = make_chats(workload, count, arguments.seed, local.count_tokens, length)
            for at in range(arguments.cases):
                together = chats[at * arguments.streams : (at + 1) * arguments.streams]
                _measure_case(local, together, of_types, arguments)
                progress.advance(task)
            rows += of_types.values()
    return rows


def _measure_case(
    local: LocalEngine, chats: Sequence[Chat], of_types: dict[str, Row], arguments: argparse.Namespace
) -> None:
    runs: dict[str, list[Run]] = {name: [] for name in ("none", *of_types)}
    free = [
        dataclasses.replace(chat, turns=tuple(dataclasses.replace(turn, schema=None) for turn in chat.turns))
        for chat in chats
    ]
    for _ in range(1 + arguments.repeats):
        for name, done in runs.items():
            done.append(_decode(local, free if name == "none" else chats, name, arguments))
    plain = runs["none"][1:]
    # What a schema allows is compared with what it allows plainly.
    expected = plain[0].tokens if free == chats else _decode(local, chats, "none", arguments).tokens
    for name, row in of_types.items():
        best = min(runs[name][1:], key=lambda one: one.decode_s)
        row.num_tokens += sum(map(len, best.tokens))
        row.num_plain_tokens += sum(map(len, plain[0].tokens))
        row.plain_s += min(one.decode_s for one in plain)
        row.drafted_s += best.decode_s
        row.num_forwards += best.num_forwards
        row.num_drafted += best.num_drafted
        row.num_accepted += best.num_accepted
        row.is_equal &= all(one.tokens == expected for one in runs[name])
        row.is_equal &= all(one.tokens == plain[0].tokens for one in plain)
        if free == chats and len(chats) == len(chats[0].turns) == 1:
            prompt = local.prompt_of(chats[0].turns[0])
            known = local.engine.costs, name, prompt, best.tokens[0]
            row.hindsight.append(best_speedup(*known))
            row.best_width.append(best_width_speedup(*known))


def _decode(local: LocalEngine, chats: Sequence[Chat], draft_type: str, arguments: argparse.Namespace) -> Run:
    local.engine.memory_reset()
    choice = DraftChoice(draft_type)  # type: ignore[arg-type]
    run = Run([], 0.0, 0, 0, 0)
    for turns in zip(*(chat.turns for chat in chats), strict=True):
        ends = local.answer([_request(local, turn, choice, arguments, at) for at, turn in enumerate(turns)])
        if not turns[0].is_measured:
            continue
        begun = min(end.usage.prefill_s for end in ends)
        reports = [end.usage.drafting for end in ends]
        run.tokens += [end.tokens for end in ends]
        run.decode_s += max(end.usage.total_s for end in ends) - (begun if len(ends) == 1 else 0.0)
        run.num_forwards += sum(report.num_forwards for report in reports)
        run.num_drafted += sum(report.num_drafted for report in reports)
        run.num_accepted += sum(report.num_accepted for report in reports)
    return run


def _request(
    local: LocalEngine, turn: Turn, choice: DraftChoice, arguments: argparse.Namespace, at: int
) -> GenerationRequest:
    bias = [(token, FORBID) for token in local.engine.tokenizer.eos_ids] if turn.is_endless else []
    first = local.engine.info.vocab_size // 2
    bias += [(first + n, FORCE) for n in range(turn.num_allowed)]
    prompt = local.prompt_of(turn)
    room = local.engine.info.context_tokens - len(prompt)
    temperature = EVEN_OUT if turn.num_allowed else turn.temperature
    sampling = Sampling(seed=arguments.seed + at, temperature=temperature, logit_bias=tuple(bias))
    grammar = Grammar("json_schema", turn.schema) if turn.schema else None
    max_tokens = min(arguments.max_tokens, room)
    return GenerationRequest(f"bench-{at}", prompt, max_tokens, sampling, draft=choice, grammar=grammar)


def _print(console: Console, rows: Sequence[Row], machine: dict[str, Any]) -> None:
    table = Table(title="Decoding with drafts, against the same chats without")
    for name in ("workload", "drafts", "streams", "tokens", "tokens/forward", "accepted"):
        table.add_column(name)
    for name in ("plain tok/s", "tok/s", "speed-up", "best width", "of it", "hindsight", "of it", "parity"):
        table.add_column(name)
    for row in rows:
        f = row.figures()
        table.add_row(
            row.workload, row.draft_type, str(row.streams), str(row.num_tokens),
            f"{f['tokens_per_forward']:.2f}", _share(f["acceptance"]), f"{f['plain_tps']:.0f}",
            f"{f['decode_tps']:.0f}", f"{f['speedup']:.3f}",
            _number(f["best_width_speedup"]), _share(f["of_best_width"]), _number(f["hindsight_speedup"]),
            _share(f["of_hindsight"]), f["parity"],
        )  # fmt: skip
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
