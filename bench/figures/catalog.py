"""The tables of README.md and of the pages of results: the run that each comes from, its rows and columns."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from reprise.bench import sampling
from reprise.bench.cost_curves import M4_PRO
from reprise.bench.decode import run_wedlm
from reprise.bench.experiment import grouped
from reprise.bench.serving.servers import DRAFTING, LOOP, MLX_LM, OWN, PLAIN
from reprise.bench.serving.traffic import COLUMNS, ratio_text
from reprise.bench.tables import Column, Row, format_value, interval
from reprise.bench.workloads import WORKLOADS


class Figure(NamedTuple):
    """A published table. rows: "section" or "section.part" of the result document that has its rows.

    where: by field, the values of which a row must have one. by: rows with equal values in these fields
    become one row.
    """

    rows: str
    columns: Sequence[Column]
    where: Mapping[str, Sequence[object]] = {}
    by: Sequence[str] = ()

    def rows_of(self, document: Mapping[str, Any]) -> list[Row]:
        """Return the table's rows: the first row of each group, with all of the group's rows as "rows".

        Rows of single turns are left out, unless `where` names turns.
        """
        section, _, part = self.rows.partition(".")
        where = {"turn": [None], **self.where}
        rows = document[section][part] if part else document[section]
        rows = [row for row in rows if all(row.get(name) in where[name] for name in where)]
        groups = grouped(rows, *self.by).values() if self.by else [[row] for row in rows]
        return [{**group[0], "rows": group} for group in groups]


class Run(NamedTuple):
    """A command, the seconds that it takes on two cores, and the figures that its document gives."""

    seconds: int
    command: str
    figures: Mapping[str, Figure]


def _each(name: str, form: str, **fields: object) -> Callable[[Row], str]:
    """Return a column: a value of each row of a group that has these fields."""
    return lambda row: ", ".join(
        format_value(one[name], form) for one in row["rows"] if fields.items() <= one.items()
    )


def _by_rows(vocab_size: int, row: Row) -> str:
    return " / ".join(_each(f"rows_{number}", "0", vocab_size=vocab_size)(row) for number in (1, 8, 32))


EVERYDAY = {
    "edit": "a short file with one change, asked for in full", "quote": "a sentence or paragraph quoted",
    "records": "JSON records picked, changed or made of text", "summary": "a short text summarized",
    "chat": "questions with nothing to copy",
}  # fmt: skip
"""Descriptions of the chats of bench/workloads/everyday.jsonl."""


def _everyday(row: Row) -> str:
    name = row["workload"]
    return f"{EVERYDAY[name]} (`{name}`)" if name in EVERYDAY else name


def _straight(name: str, row: Row) -> Any:
    return row["straight"] and row["straight"][name]


def _positions(row: Row) -> str:
    rates = zip(row["acceptance_by_position"], row["drafted_by_position"], strict=True)
    return ", ".join(f"{100 * rate:.0f} % of {drafted}" for rate, drafted in list(rates)[:8])


def _chats(row: Row) -> str:
    length = f", {row['prompt_tokens']} tokens" if row.get("prompt_tokens") else ""
    return f"{WORKLOADS[row['workload']].summary} (`{row['workload']}`{length})"


def _equal(row: Row) -> str:
    return "equal" if all(one["parity"] == "PASS" for one in row["rows"]) else "DIFFER"


def _replayed(draft_cost: float, row: Row) -> str:
    """Return the speedup on the published machine with the draft length that is best there.

    draft_cost: of a token that an MTP head drafts, or of a block of a DFlash drafter, in plain steps.
    """
    share = row["drafted_by_position"][0] / max(row["drafted_by_position"])
    speedups = []
    for length, brought in enumerate(accumulate(row["acceptance_by_position"], initial=1.0)):
        drafting = draft_cost * (length if row["draft_type"] == "mtp" else length > 0)
        speedups.append((1 + share * (brought - 1)) / (M4_PRO.cost(1 + length) + drafting))
    return f"{max(speedups):.2f} ({speedups.index(max(speedups))})"


_CHATS, _TYPE = Column(_chats, "chats"), Column("draft_type", "draft type")
_ACCEPTED, _SPEEDUP = Column("acceptance", "accepted", "%"), Column("speedup", "speedup", "2")
_EQUAL, _INTERVAL = Column(_equal, "tokens"), Column(interval, "95 % interval")
_SPEEDS = [
    Column("tokens_per_forward", "tokens per forward pass", "1"), _ACCEPTED,
    Column("plain_tps", "tokens/s without", "0"), Column("decode_tps", "tokens/s with", "0"), _SPEEDUP,
]  # fmt: skip
_FITS = [
    Column("num_draft_tokens", "draft length"), Column("step_cost", "cost of a step, in plain steps", "2"),
    Column("break_even", "break-even acceptance rate", "2"), _INTERVAL,
]  # fmt: skip

_SPEED = Figure("decode.rows", [_CHATS, *_SPEEDS, _EQUAL])
_BY_DRAFTS = Figure("decode.rows", [_CHATS, _TYPE, *_SPEEDS, _EQUAL])
_REPLAYED = Figure(
    "decode.rows",
    [_CHATS, *(Column(partial(_replayed, cost), f"draft cost {cost}") for cost in (0.05, 0.1, 0.2, 0.4))],
    where={"draft_type": ("mtp", "dflash")},
)
_PEERS = Figure("serve.levels", COLUMNS)
_CACHES = Figure("serve.levels", [
    Column("model", "architecture"), Column("streams", "streams"), Column(ratio_text("speedup"), "tokens/s"),
    Column(ratio_text("ttft_ratio"), "first token, median"),
    Column(ratio_text("inter_token_ratio"), "between tokens, median"),
], {"name": [OWN]})  # fmt: skip

_PER_FORWARD = Column("tokens_per_forward", "tokens per forward pass", "2")
_WITHOUT_LOOPS = [
    Column(partial(_straight, "tokens_per_forward"), "per forward pass without answers that loop", "2"),
    Column(partial(_straight, "speedup"), "speedup without those", "2"),
]
_REAL = Figure("decode.rows", [
    Column(_everyday, "chats"), Column("cases", "answers"), _PER_FORWARD, _ACCEPTED, _SPEEDUP,
    *_WITHOUT_LOOPS, _EQUAL,
])  # fmt: skip
_BY_CURVE = Figure("replay.rows", [
    Column("workload", "chats"), Column("pairs", "answers"), Column("rule", "rule"),
    _PER_FORWARD, _ACCEPTED, _SPEEDUP, *_WITHOUT_LOOPS,
])  # fmt: skip

_AGENTS = Figure("replay.rows", [
    Column("workload", "answer, and how the file was shown"), Column("pairs", "answers", "0"),
    Column("tokens_per_forward", "tokens per forward pass", "1"), _ACCEPTED, _SPEEDUP,
    Column("slowest", "slowest answer", "2"),
])  # fmt: skip

_VERIFIED = "--num-draft-tokens 7 --verify-all --cases 2 --repeats 2"
_HEADS = f"{_VERIFIED} --workloads edits,quotes,records,arithmetic,remap,free"
_SERVERS = "--server mlx_lm.server --server reprise --concurrency 1,8"
_RANDOM = "serve --random-models gemma3_text,gpt_oss,qwen3_next,lfm2"
_HISTORY = "replay --history . --numbers plain,arrow --drafters auto --cost-curve apple-m4-pro-4bit"
_EVERYDAY = "bench/workloads/everyday.jsonl"
_SMOLLM2 = f"--model smollm2 --prompts {_EVERYDAY} --max-tokens 80"
_AT_PRICES = f"replay --pairs {_EVERYDAY} --tokenizer smollm2 --cost-curve apple-m4-pro-4bit"
_PAIR = "translation --model models/gemma3 --draft-model smollm2"
_REAL_PEERS = f"serve {_SMOLLM2} --draft-model models/smollm2-10-layers --rounds 1 " + " ".join(
    f"--server {name}" for name in (MLX_LM, DRAFTING, PLAIN, OWN)
)
_STREAMS = "serve --concurrency 8 --server mlx_lm.server --server reprise --rounds 3"

RUNS = [
    Run(3300, f"decode {_SMOLLM2} --cases 20 --repeats 3",
        {"real": _REAL,
         "real-positions": Figure("decode.rows", [
             Column("workload", "chats"),
             Column(_positions, "accepted of those drafted, from the first on")]),
         "real-costs": Figure("cost_curve", [
             Column("width", "tokens in a step"), Column("plain_steps", "cost, in plain steps", "2")])}),
    Run(900, f"decode {_SMOLLM2} --cases 5 --repeats 1 --streams 4", {"real-streams": _REAL}),
    Run(900, f"{_REAL_PEERS} --chats 1", {"real-peers": _PEERS}),
    Run(900, f"{_REAL_PEERS} --chats 4 --concurrency 4 --mixed", {"real-peers-streams": _PEERS}),
    Run(20, f"{_AT_PRICES} --drafters auto,earliest-2,longest-5,hindsight", {"real-replayed": _BY_CURVE}),
    Run(1500, f"{_PAIR} --prompts bench/workloads/continuations.jsonl --strategies context,shared "
        "--num-draft-tokens 4 --cases 8 --max-tokens 24 --no-adaptive",
        {"pair": Figure("translation.rows", [
            Column("strategy", "strategy"), Column("workload", "text"),
            _ACCEPTED, _PER_FORWARD, Column("translated", "translated"), Column("absorbed", "absorbed"),
            Column("skipped", "skipped"), _EQUAL])}),
    Run(240, "decode --workloads edits,passages,records,quotes,free,trap --cases 6 --repeats 3",
        {"drafting": Figure("decode.rows", [_CHATS, *_SPEEDS]),
         "hindsight": Figure("decode.rows", [
             _CHATS, _SPEEDUP, Column("of_best_width", "of the best single width", "%")])}),
    Run(90, _HISTORY, {"agents": _AGENTS}),
    Run(90, f"{_HISTORY} --chat-template bench/replay/xml_calls.jinja", {"agents-xml": _AGENTS}),
    Run(100, "decode --workloads edits --streams 8 --cases 1 --repeats 2", {"batch": _SPEED}),
    Run(90, "decode --workloads edits_again_cold,edits_again --draft-types auto,ngram-mod --cases 5 "
        "--repeats 2", {"second-edit": _BY_DRAFTS}),
    Run(170, "decode --workloads json_rag,code,edits_short,agent,extraction,summary,remap,arithmetic "
        "--cases 1 --repeats 2", {"workloads": _SPEED}),
    Run(100, f"decode --draft-model demo_model/mtp --draft-types suffix,mtp,auto {_HEADS}",
        {"heads-mtp": _BY_DRAFTS, "heads-mtp-replayed": _REPLAYED}),
    Run(100, f"decode --draft-model demo_model/dflash --draft-types suffix,dflash,auto {_HEADS}",
        {"heads-dflash": _BY_DRAFTS, "heads-dflash-replayed": _REPLAYED}),
    Run(90, f"decode --draft-model demo_model/draft --draft-types suffix,draft-model,auto {_HEADS}",
        {"heads-draft-model": _BY_DRAFTS}),
    Run(120, f"serve {_SERVERS} --server {LOOP} --prompt-tokens 128 --max-tokens 128",
        {"serving": _PEERS}),
    Run(200, f"{_RANDOM} {_SERVERS} --prompt-tokens 64 --max-tokens 64 --rounds 2 --draft-type none",
        {"caches": _CACHES}),
    Run(400, f"{_RANDOM} --repetitive {_SERVERS} --prompt-tokens 64 --max-tokens 256 --rounds 2 "
        "--draft-type auto", {"caches-drafting": _CACHES}),
    Run(200, f"{_RANDOM} {_SERVERS} --prompt-tokens 64 --max-tokens 64 --rounds 2 --draft-type auto",
        {"caches-looking": _CACHES}),
    Run(70, "serve --concurrency 64 --rounds 1 --prompt-tokens 64 --max-tokens 32",
        {"clients": Figure("serve.levels", [one for one in COLUMNS if "ratio" not in one.heading])}),
    Run(280, "economics --draft-model demo_model/draft --chats 3 --num-draft-tokens 2,4,8",
        {"break-even": Figure("economics.fits", _FITS),
         "draft-model": Figure("economics.draft_model", [_FITS[0], *_FITS[2:]]),
         "choices": Figure("economics.choices", [
             Column("workload", "chats"), _TYPE, Column("num_draft_tokens", "maximum draft length"),
             _ACCEPTED, _SPEEDUP, _INTERVAL])}),
    Run(150, "translation",
        {"translation": Figure("translation.rows", [
            Column("draft_model", "draft model"), Column("strategy", "strategy"), Column("workload", "chats"),
            Column(_each("acceptance", "%", is_adaptive=False), "accepted, k = 2, 4, 6"),
            Column(_each("tokens_per_forward", "1", is_adaptive=False), "tokens per forward pass"),
            Column(_each("speedup", "2", is_adaptive=False), "speedup"),
            Column(_each("speedup", "2", is_adaptive=True), "speedup, engine's lengths"),
            _EQUAL], by=("draft_model", "strategy", "workload"))}),
    Run(130, f"serve --workloads edits,passage,summary --server {LOOP} --server mlx_lm.server "
        "--server reprise --rounds 3", {"peers": _PEERS}),
    Run(60, f"{_STREAMS} --workloads edits", {"streams": _PEERS}),
    Run(90, f"{_STREAMS} --workloads edits,passage,summary,records --mixed --chats 2",
        {"mixed-streams": _PEERS}),
    Run(130, "turns",
        {"turns": Figure("turns.rows", [
            Column("number", "turn"), Column("num_prompt_tokens", "prompt tokens", "0"),
            Column("num_cached_tokens", "cached", "0"), Column("warm_ms", "first token, ms", "0"),
            Column("cold_ms", "first token without the cache, ms", "0")])}),
    Run(60, "sweep --parts warm --workloads edits_short --chats 1",
        {"warm": Figure("sweep.warm", [
            Column("pair", "answering model"), _TYPE,
            *(Column(_each("speedup", "2", memory=memory), memory) for memory in ("cold", "warm"))],
            by=("pair", "draft_type"))}),
    Run(210, "wedlm --windows 8,16 --thresholds 0.3,0.6 --penalties 0.01 --cases 2",
        {"wedlm": Figure("wedlm.rows", run_wedlm.COLUMNS, {"is_streaming": [False]}),
         "wedlm-streaming": Figure("wedlm.rows", run_wedlm.COLUMNS, {"is_streaming": [True]})}),
    Run(40, "sampling",
        {"sampling": Figure("sampling.rows", [
            Column("settings", "settings"),
            *(Column(partial(_by_rows, size), f"{size:,} tokens: 1 / 8 / 32 rows")
              for size in (4_096, 32_000, 151_936))], by=["settings"])}),
    Run(50, "sampling --memory --vocabularies 151936 --rows 8,64,256",
        {"sampling-memory": Figure("sampling.rows", sampling.columns((8, 64, 256)))}),
]  # fmt: skip
"""The commands that make the figures, in this order."""

QUICK = {
    "decode": "--workloads edits --cases 1 --repeats 1 --max-tokens 16",
    "serve": "--concurrency 1 --chats 1 --rounds 1 --max-tokens 16",
    "economics": "--workloads edits --chats 1 --max-tokens 24 --num-draft-tokens 2",
    "translation": "--workloads edits --cases 1 --max-tokens 16 --num-draft-tokens 2",
    "turns": "--prompt-tokens 300 --turns 2 --repeats 1",
    "sweep": "--max-tokens 32 --repeats 0",
    "wedlm": "--workloads edits,free --cases 1 --max-tokens 24 --windows 8 --thresholds 0.3",
    "sampling": "--settings greedy",
    "replay": "--changes 1",
    "--random-models": "--random-models lfm2",
    "--streams": "--streams 2",
}
"""More arguments of commands with these words, for a run that only shows that it works."""

FIGURES = {name: figure for run in RUNS for name, figure in run.figures.items()}
"""All tables, by name."""
