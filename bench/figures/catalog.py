"""The tables of README.md and docs/results.md: the command that each comes from, its rows and its columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.costs import sampling
from bench.decode import run_wedlm
from bench.serving import run_peers, run_serve
from bench.tables import Column, Row, format_value, interval
from bench.workloads import WORKLOADS

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A table of the documentation.

    command: arguments of `reprise bench`. quick: arguments for a run that only shows that it works.
    seconds: what the command takes on two cores, to show the time left; 0 if an earlier figure has run it.
    rows: takes the rows from the document that the command writes. columns: of the table.
    """

    name: str
    command: str
    quick: str
    seconds: int
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


_CHATS = Column(_chats, "chats")
_SPEEDS = [
    Column("tokens_per_forward", "tokens per forward pass", "1"),
    Column("acceptance", "accepted", "%"),
    Column("plain_tps", "tokens/s without", "0"),
    Column("decode_tps", "tokens/s with", "0"),
    Column("speedup", "speedup", "2"),
    Column(lambda row: "equal" if row["parity"] == "PASS" else "DIFFER", "tokens"),
]
_TRANSLATION = [
    Column("draft_model", "draft model"), Column("strategy", "strategy"), Column("workload", "chats"),
    Column(_lengths("acceptance", "%"), "accepted, k = 2, 4, 6"),
    Column(_lengths("tokens_per_forward", "1"), "tokens per forward pass"),
    Column(_lengths("speedup", "2"), "speedup"), Column("adaptive", "speedup, engine's lengths", "2"),
    Column("parity", "tokens"),
]  # fmt: skip
_FITS = [
    Column("num_draft_tokens", "draft length"),
    Column("step_cost", "cost of a step, in plain steps", "2"),
    Column("break_even", "break-even acceptance rate", "2"),
    Column(interval, "95 % interval"),
]
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

_DRAFTING = "decode --workloads edits,passages,records,quotes,free,trap --cases 10 --repeats 5"
_OTHERS = "json_rag,code,edits_short,agent,extraction,summary,remap,arithmetic"
_ECONOMICS = "economics --draft-model demo_model/draft --chats 4 --num-draft-tokens 2,4,8"
_SERVING = (
    "serve --server reprise --server mlx_lm.server --bare --concurrency 1,8 --prompt-tokens 128"
    " --max-tokens 128"
)
_CACHES = (
    "serve --random-models gemma3_text,gpt_oss,qwen3_next,lfm2 --server reprise --server mlx_lm.server"
    " --concurrency 1,8 --prompt-tokens 64 --max-tokens 96 --draft-type"
)
_STREAMS = "peers --streams 8 --server mlx_lm.server --server reprise --no-mlx-lm --rounds 3"
_ONE, _FEW = "--cases 1 --repeats 1 --max-tokens 32", "--chats 1 --rounds 1 --max-tokens 24"
_QUICK_FITS, _QUICK_LEVELS = "--chats 1 --max-tokens 24 --num-draft-tokens 2", "--max-tokens 16 --rounds 1"
_QUICK_STREAMS = "--rounds 1 --max-tokens 16"
_WEDLM = "wedlm --windows 8,16 --thresholds 0.3,0.6 --penalties 0.01"
_QUICK_WEDLM = "--cases 1 --max-tokens 24 --windows 8 --thresholds 0.3 --penalties 0.01"
_DECODE, _PEERS, _SERVE = _of("decode"), _of("peers"), _of("serve", "levels")

FIGURES = [
    Figure("drafting", _DRAFTING, _ONE, 620, _DECODE, [_CHATS, *_SPEEDS[:-1]]),
    Figure("hindsight", _DRAFTING, _ONE, 0, _DECODE, _HINDSIGHT),
    Figure(
        "batch", "decode --workloads edits --streams 8 --cases 1 --repeats 2", "--repeats 1 --max-tokens 16",
        100, _DECODE, [_CHATS, *_SPEEDS],
    ),
    Figure(
        "second-edit",
        "decode --workloads edits_again_cold,edits_again --draft-types auto,ngram-mod --cases 5 --repeats 2",
        _ONE, 90, _DECODE, [_CHATS, Column("draft_type", "draft type"), *_SPEEDS],
    ),
    Figure(
        "workloads", f"decode --workloads {_OTHERS} --cases 1 --repeats 2", "--max-tokens 16 --repeats 1",
        170, _DECODE, [_CHATS, *_SPEEDS],
    ),
    Figure("serving", _SERVING, _QUICK_LEVELS, 120, _SERVE, _LEVELS),
    Figure("serving-ratios", _SERVING, _QUICK_LEVELS, 0, _of("serve", "comparisons"), run_serve.RATIOS),
    Figure("caches", f"{_CACHES} none", _QUICK_LEVELS, 570, _of_models, _MODELS),
    Figure("caches-drafting", f"{_CACHES} auto", _QUICK_LEVELS, 570, _of_models, _MODELS),
    Figure(
        "clients", "serve --concurrency 64 --rounds 1 --prompt-tokens 64 --max-tokens 32", "--max-tokens 4",
        70, _SERVE, run_serve.LEVELS,
    ),
    Figure("break-even", _ECONOMICS, _QUICK_FITS, 360, _of("economics", "fits"), _FITS),
    Figure(
        "draft-model", _ECONOMICS, _QUICK_FITS, 0, _of("economics", "draft_model"), [_FITS[0], *_FITS[2:]]
    ),
    Figure("choices", _ECONOMICS, _QUICK_FITS, 0, _of("economics", "choices"), _CHOICES),
    Figure(
        "translation", "translation", "--cases 1 --max-tokens 16 --num-draft-tokens 2 --workloads edits", 150,
        _translation, _TRANSLATION,
    ),
    Figure(
        "peers", "peers --server mlx_lm.server --server reprise --rounds 3", _FEW, 130, _PEERS,
        run_peers.COLUMNS,
    ),
    Figure("streams", f"{_STREAMS} --workloads edits", _QUICK_STREAMS, 60, _PEERS, run_peers.COLUMNS),
    Figure(
        "mixed-streams", f"{_STREAMS} --workloads edits,passage,summary,records --mixed --chats 2",
        _QUICK_STREAMS, 90, _PEERS, run_peers.COLUMNS,
    ),
    Figure("turns", "turns", "--prompt-tokens 300 --turns 2 --repeats 1", 130, _of("turns"), _TURNS),
    Figure(
        "warm", "sweep --parts warm --workloads edits_short --chats 1", "--max-tokens 32 --repeats 0", 60,
        _warm, _WARM,
    ),
    Figure("wedlm", _WEDLM, _QUICK_WEDLM, 400, _wedlm(False), run_wedlm.COLUMNS),
    Figure("wedlm-streaming", _WEDLM, _QUICK_WEDLM, 0, _wedlm(True), run_wedlm.COLUMNS),
    Figure(
        "sampling", "sampling", "--settings greedy --vocabularies 300,400 --rows 1,8,32", 40,
        lambda found: sampling.by_size(found["sampling"]["rows"]), _SAMPLING,
    ),
    Figure(
        "sampling-memory", "sampling --memory --vocabularies 151936 --rows 8,64,256", "--settings greedy", 50,
        _of("sampling"), sampling.columns((8, 64, 256)),
    ),
]  # fmt: skip

Place = tuple[str, str, tuple[str, ...], str]
"""A cell of one of our tables: figure, heading, cells of its row, and a note for the reader."""


def _even(figure: str, length: str, note: str) -> Place:
    return figure, "break-even acceptance rate", (length,), note


PUBLISHED: list[tuple[str, str, list[Place]]] = [
    ("prompt lookup on questions about JSON records (`json_rag`)", "+54 %",
     [("workloads", "speedup", ("`json_rag`, 600",), "at 600 tokens"),
      ("workloads", "speedup", ("`json_rag`, 800",), "at 800")]),
    ("edits with 4 drafted tokens", "1.51x to 1.69x",
     [("choices", "speedup", ("edits", one, "4"), f"(`{one}`)")
      for one in ("suffix", "ngram-simple", "ngram-mod")]),
    ("edits: lookup against a draft model", "1.68x against 1.21x",
     [("choices", "speedup", ("edits", one, "4"), f"(`{one}`)") for one in ("ngram-simple", "draft-model")]),
    ("n-gram table, cold and warm", "1.73x and 1.87x",
     [("second-edit", "speedup", (f"`{chats}`", one), f"({state}, `{one}`)")
      for one in ("ngram-mod", "auto")
      for state, chats in (("cold", "edits_again_cold"), ("warm", "edits_again"))]),
    *[(f"break-even acceptance rate with a draft model, {length} drafted tokens", published,
       [_even("draft-model", length, ""), _even("break-even", length, "for drafts made at no cost")])
      for length, published in (("2", "0.44"), ("4", "0.81"))],
]  # fmt: skip
"""What others published, in words and figures, and our cells beside it."""
