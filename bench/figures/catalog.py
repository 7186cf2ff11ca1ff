"""The tables of README.md and docs/results.md: the run that each comes from, its rows and its columns."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.cost_curves import M4_PRO
from bench.costs import sampling
from bench.decode import run_wedlm
from bench.serving import run_peers, run_serve
from bench.tables import Column, Row, format_value, interval
from bench.workloads import WORKLOADS

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A command, and the figures that its document gives.

    command: arguments of `reprise bench`. quick: more arguments, for a run that only shows that it works.
    seconds: what the command takes on two cores, to show the time left.
    """

    figures: Sequence[str]
    command: str
    quick: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A table of the documentation. rows: takes the rows from the document of its run."""

    rows: Callable[[Document], Sequence[Row]]
    columns: Sequence[Column]


def _of(section: str, part: str = "rows") -> Callable[[Document], Sequence[Row]]:
    return lambda found: [row for row in found[section][part] if row.get("turn") is None]


def _chats(row: Row) -> str:
    known = WORKLOADS.get(row["workload"])
    length = f", {row['prompt_tokens']} tokens" if row.get("prompt_tokens") else ""
    return f"{known.summary if known else row['workload']} (`{row['workload']}`{length})"


def _lengths(name: str, form: str) -> Callable[[Row], str]:
    """Return a column of values at all fixed draft lengths, separated by commas."""
    return lambda row: ", ".join(format_value(one[name], form) for one in row["fixed"])


def _of_models(found: Document) -> list[Row]:
    """Return a row for each model and level, with the ratios of throughput and of the first token."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for one in found["serve"]["comparisons"]:
        row = rows.setdefault((one["model"], one["concurrency"]), dict(one))
        row[one["quantity"]] = one["ratio"] or {}
    return list(rows.values())


def _ratio(quantity: str) -> Callable[[Row], str]:
    """Return a column of ratios of the medians, and of the rounds."""

    def text(row: Row) -> str:
        found = row[quantity]
        return f"{format_value(found.get('of_medians'), '2')} ({interval(found, 'lowest', 'highest')})"

    return text


def _translation(found: Document) -> list[Row]:
    """Return a row for each draft model, strategy and workload, with all draft lengths."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in found["translation"]["rows"]:
        names = ("draft_model", "strategy", "workload")
        key = tuple(row[name] for name in names)
        one = rows.setdefault(key, {name: row[name] for name in names} | {"fixed": [], "parity": "equal"})
        if row["is_adaptive"]:
            one["adaptive"] = row["speedup"]
        else:
            one["fixed"].append(row)
        if row["parity"] != "PASS":
            one["parity"] = "FAIL"
    return list(rows.values())


def _warm(found: Document) -> list[Row]:
    """Return a row for each answering model and draft type, with its speedups for a cold and a warm table."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _of("sweep", "warm")(found):
        one = rows.setdefault((row["pair"], row["draft_type"]), {**row})
        one[row["memory"]] = row["speedup"]
    return list(rows.values())


def _wedlm(is_streaming: bool) -> Callable[[Document], Sequence[Row]]:
    return lambda found: [row for row in found["wedlm"]["rows"] if row["is_streaming"] == is_streaming]


def _of_heads(found: Document) -> list[Row]:
    """Return a row for each workload for which a head alone drafted, with every draft verified."""
    return [row for row in _of("decode")(found) if row["draft_type"] in ("mtp", "dflash")]


def _replayed(draft_cost: float) -> Callable[[Row], str]:
    """Return a column: the speedup on the published machine with the draft length that is best there.

    draft_cost: of a token that an MTP head drafts, or of a block of a DFlash drafter, in plain steps.
    """

    def text(row: Row) -> str:
        accepted = accumulate(row["acceptance_by_position"], initial=1.0)
        share = row["drafted_by_position"][0] / max(row["drafted_by_position"])
        speedups = {
            length: (1 + share * (brought - 1))
            / (M4_PRO.cost(1 + length) + draft_cost * (length if row["draft_type"] == "mtp" else length > 0))
            for length, brought in enumerate(accepted)
        }
        best = max(speedups, key=lambda length: speedups[length])
        return f"{speedups[best]:.2f} ({best})"

    return text


_CHATS = Column(_chats, "chats")
_SPEEDS = [
    Column("tokens_per_forward", "tokens per forward pass", "1"), Column("acceptance", "accepted", "%"),
    Column("plain_tps", "tokens/s without", "0"), Column("decode_tps", "tokens/s with", "0"),
    Column("speedup", "speedup", "2"),
    Column(lambda row: "equal" if row["parity"] == "PASS" else "DIFFER", "tokens"),
]  # fmt: skip
_TRANSLATION = [
    Column("draft_model", "draft model"), Column("strategy", "strategy"), Column("workload", "chats"),
    Column(_lengths("acceptance", "%"), "accepted, k = 2, 4, 6"),
    Column(_lengths("tokens_per_forward", "1"), "tokens per forward pass"),
    Column(_lengths("speedup", "2"), "speedup"), Column("adaptive", "speedup, engine's lengths", "2"),
    Column("parity", "tokens"),
]  # fmt: skip
_FITS = [
    Column("num_draft_tokens", "draft length"), Column("step_cost", "cost of a step, in plain steps", "2"),
    Column("break_even", "break-even acceptance rate", "2"), Column(interval, "95 % interval"),
]  # fmt: skip
_CHOICES = [
    Column("workload", "chats"), Column("draft_type", "draft type"),
    Column("num_draft_tokens", "maximum draft length"), Column("acceptance", "accepted", "%"),
    Column("speedup", "speedup", "2"), Column(interval, "95 % interval"),
]  # fmt: skip
_TURNS = [
    Column("number", "turn"), Column("num_prompt_tokens", "prompt tokens", "0"),
    Column("num_cached_tokens", "cached", "0"), Column("warm_ms", "first token, ms", "0"),
    Column("cold_ms", "first token without the cache, ms", "0"),
]  # fmt: skip
_WARM = [
    Column("pair", "answering model"), Column("draft_type", "draft type"),
    Column("cold", "cold", "2"), Column("warm", "warm", "2"),
]  # fmt: skip
_SAMPLING = [
    Column("settings", "settings"),
    *(Column(f"rows_{rows}", f"151,936 tokens, {rows} row{'s' * (rows > 1)}", "0") for rows in (1, 8, 32)),
    *(Column(f"vocab_{size}", f"{size:,} tokens, 8 rows", "0") for size in (32_000, 4_096)),
]
_HINDSIGHT = [
    _CHATS, Column("speedup", "speedup", "2"), Column("of_best_width", "of the best single width", "%"),
]  # fmt: skip
_LEVELS = [*run_serve.LEVELS[:4], *run_serve.LEVELS[8:]]

_MODELS = [
    Column("model", "architecture"), Column("concurrency", "streams"),
    Column(_ratio("tokens/s"), "tokens/s"), Column(_ratio("first token p50"), "first token, median"),
    Column(_ratio("inter-token p50"), "between tokens, median"),
]  # fmt: skip

_REPLAYED = [_CHATS, *(Column(_replayed(cost), f"draft cost {cost}") for cost in (0.05, 0.1, 0.2, 0.4))]
_BY_DRAFTS = [_CHATS, Column("draft_type", "draft type"), *_SPEEDS]
_DECODE, _PEERS, _SERVE = _of("decode"), _of("peers"), _of("serve", "levels")

FIGURES = {
    "drafting": Figure(_DECODE, [_CHATS, *_SPEEDS[:-1]]),
    "hindsight": Figure(_DECODE, _HINDSIGHT),
    "batch": Figure(_DECODE, [_CHATS, *_SPEEDS]),
    "second-edit": Figure(_DECODE, _BY_DRAFTS),
    "workloads": Figure(_DECODE, [_CHATS, *_SPEEDS]),
    "heads-mtp": Figure(_DECODE, _BY_DRAFTS),
    "heads-mtp-replayed": Figure(_of_heads, _REPLAYED),
    "heads-dflash": Figure(_DECODE, _BY_DRAFTS),
    "heads-dflash-replayed": Figure(_of_heads, _REPLAYED),
    "heads-draft-model": Figure(_DECODE, _BY_DRAFTS),
    "serving": Figure(_SERVE, _LEVELS),
    "serving-ratios": Figure(_of("serve", "comparisons"), run_serve.RATIOS),
    "caches": Figure(_of_models, _MODELS),
    "caches-drafting": Figure(_of_models, _MODELS),
    "caches-looking": Figure(_of_models, _MODELS),
    "clients": Figure(_SERVE, run_serve.LEVELS),
    "break-even": Figure(_of("economics", "fits"), _FITS),
    "draft-model": Figure(_of("economics", "draft_model"), [_FITS[0], *_FITS[2:]]),
    "choices": Figure(_of("economics", "choices"), _CHOICES),
    "translation": Figure(_translation, _TRANSLATION),
    "peers": Figure(_PEERS, run_peers.COLUMNS),
    "streams": Figure(_PEERS, run_peers.COLUMNS),
    "mixed-streams": Figure(_PEERS, run_peers.COLUMNS),
    "turns": Figure(_of("turns"), _TURNS),
    "warm": Figure(_warm, _WARM),
    "wedlm": Figure(_wedlm(False), run_wedlm.COLUMNS),
    "wedlm-streaming": Figure(_wedlm(True), run_wedlm.COLUMNS),
    "sampling": Figure(lambda found: sampling.by_size(found["sampling"]["rows"]), _SAMPLING),
    "sampling-memory": Figure(_of("sampling"), sampling.columns((8, 64, 256))),
}
"""All tables, by name."""

Place = tuple[str, str, Sequence[str], str]
"""A cell of one of our tables: figure, heading, cells of its row, and a note for the reader."""

_RUNS = tomllib.loads((Path(__file__).parent / "runs.toml").read_text(encoding="utf-8"))
RUNS = [Run(**one) for one in _RUNS["runs"]]
PUBLISHED: list[tuple[str, str, list[Place]]] = [
    (one["what"], one["theirs"], [(*place,) for place in one["ours"]]) for one in _RUNS["published"]
]
"""What others published, in words and figures, and our cells beside it."""
