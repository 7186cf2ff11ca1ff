"""The tables of README.md and the results pages: each one's run, rows and columns."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from reprise.bench.cost_curves import M4_PRO
from reprise.bench.document import Column, Row, format_value, interval
from reprise.bench.experiment import grouped
from reprise.bench.serving.servers import DRAFTING, LOOP, MLX_LM, OWN, PLAIN, UNCACHED
from reprise.bench.serving.traffic import COLUMNS, ratio_text
from reprise.bench.workloads import WORKLOADS


class Figure(NamedTuple):
    """A published table. rows: "section" or "section.part" of the result document that has its rows.

    where: field -> the values that a row may have. by: rows with equal values in these fields become one row.
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


def _of_own(name: str) -> Callable[[Row], Any]:
    """Return a column: a value of the row of Reprise's own server."""
    return lambda row: next((one[name] for one in row["rows"] if one["name"] == OWN), None)


def _at_costs(row: Row) -> float | None:
    """Return the speedup, measured or from a curve; None if width costs nothing."""
    return (
        None
        if row["costs"] == "equal"
        else row["speedup"]
        if row["costs"] == "own"
        else row["priced_speedup"]
    )


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
    """Return the speedup on the published machine with its best draft length.

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
_PEER_COLUMNS = [one for one in COLUMNS if one.heading != "turn"]
_REPLAYED = Figure(
    "decode.rows",
    [_CHATS, *(Column(partial(_replayed, cost), f"draft cost {cost}") for cost in (0.05, 0.1, 0.2, 0.4))],
    where={"draft_type": ("mtp", "dflash")},
)
_PEERS = Figure("serve.levels", _PEER_COLUMNS)
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

_HEADS = (
    "--num-draft-tokens 7 --costs equal --cases 2 --repeats 2 "
    "--workloads edits,quotes,records,arithmetic,remap,free"
)
_SERVERS = "--server mlx_lm.server --server reprise --concurrency 1,8"
_RANDOM = "serve --random-models gemma3_text,gpt_oss,qwen3_next,lfm2"
_HISTORY = "replay --history . --numbers plain,arrow --drafters auto --cost-curve apple-m4-pro-4bit"
_EVERYDAY = "bench/workloads/everyday.jsonl"
_SMOLLM2 = f"--model smollm2 --prompts {_EVERYDAY} --max-tokens 80"
_AT_PRICES = f"replay --pairs {_EVERYDAY} --tokenizer smollm2 --cost-curve apple-m4-pro-4bit"
_PAIR = "decode --model models/gemma3 --draft-model smollm2 --draft-types draft-model --costs forced"
_REAL_PEERS = f"serve {_SMOLLM2} --draft-model models/smollm2-10-layers --rounds 1 " + " ".join(
    f"--server {name}" for name in (MLX_LM, DRAFTING, PLAIN, OWN)
)
_PAYS = (
    "--draft-model demo_model/draft --workloads edits,passage,free --num-draft-tokens 2,4,8 --max-tokens 96"
)
_WEDLM = (
    "--model demo_model/wedlm --draft-types suffix,wedlm,auto --costs equal,own,apple-m4-pro-4bit "
    "--windows 8,16 --thresholds 0.3,0.6 --penalties 0.01 --cases 2 --repeats 1 --together "
    "--workloads edits,records,quotes,passages,free"
)
_OF_WEDLM = [
    Column("workload", "chats"), Column("arm", "drafts, or window"), Column("costs", "costs of steps"),
    Column("tokens_per_forward", "tokens per forward", "2"),
    Column("fed_per_forward", "fed per forward", "1"), Column("generated_per_fed", "generated / fed", "2"),
    Column("right", "right", "%"), Column("same", "same", "%"), Column(_at_costs, "speed of plain", "2"),
]  # fmt: skip
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
        "--num-draft-tokens 4 --cases 8 --max-tokens 24 --repeats 1",
        {"pair": Figure("decode.rows", [
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
        {"clients": Figure("serve.levels", [one for one in _PEER_COLUMNS if "ratio" not in one.heading])}),
    Run(190, f"sweep --parts break-even {_PAYS} --chats 3",
        {"break-even": Figure("sweep.fits", _FITS),
         "draft-model": Figure("sweep.draft_model", [_FITS[0], *_FITS[2:]])}),
    Run(280, f"decode {_PAYS} --draft-types suffix,ngram-mod,ngram-simple,draft-model --costs forced "
        "--cases 3 --repeats 1",
        {"choices": Figure("decode.rows", [
             Column("workload", "chats"), _TYPE, Column("num_draft_tokens", "maximum draft length"),
             _ACCEPTED, Column("mean_speedup", "speedup", "2"), _INTERVAL])}),
    Run(200, "decode --draft-model demo_model/draft_polish --draft-model demo_model/draft "
        "--strategies context,shared --draft-types draft-model --costs own,forced --num-draft-tokens 2,4,6 "
        "--workloads edits_polish,passages_polish,records_polish,edits --cases 2 --repeats 1 --max-tokens 64",
        {"translation": Figure("decode.rows", [
            Column("draft_model", "draft model"), Column("strategy", "strategy"), Column("workload", "chats"),
            Column(_each("acceptance", "%", costs="forced"), "accepted, k = 2, 4, 6"),
            Column(_each("tokens_per_forward", "1", costs="forced"), "tokens per forward pass"),
            Column(_each("speedup", "2", costs="forced"), "speedup"),
            Column(_each("speedup", "2", costs="own"), "speedup, engine's lengths"),
            _EQUAL], by=("draft_model", "strategy", "workload"))}),
    Run(130, f"serve --workloads edits,passage,summary --server {LOOP} --server mlx_lm.server "
        "--server reprise --rounds 3", {"peers": _PEERS}),
    Run(60, f"{_STREAMS} --workloads edits", {"streams": _PEERS}),
    Run(90, f"{_STREAMS} --workloads edits,passage,summary,records --mixed --chats 2",
        {"mixed-streams": _PEERS}),
    Run(130, f"serve --workloads passage --prompt-tokens 2000 --chats 1 --by-turn --server {UNCACHED} "
        f"--server {OWN} --max-tokens 48",
        {"turns": Figure("serve.levels", [
            Column("turn", "turn"), Column(_of_own("num_prompt_tokens"), "prompt tokens", "0"),
            Column(_of_own("num_cached_tokens"), "cached", "0"),
            Column(_of_own("ttft_ms"), "first token, ms", "0"),
            Column("ttft_ms", "first token without the cache, ms", "0")],
            {"turn": (1, 2, 3)}, by=["turn"])}),
    Run(60, "decode --workloads edits_short --cases 1 --repeats 1 --draft-types ngram-mod,auto "
        "--max-tokens 192 --warm demo_model,demo_model/draft",
        {"warm": Figure("decode.rows", [
            Column("memory", "answers in the table"), _TYPE,
            Column("occupancy", "occupied", lambda share: "-" if share is None else f"{share:.4%}"),
            *_SPEEDS[:2], _SPEEDUP])}),
    Run(210, f"decode {_WEDLM}",
        {"wedlm": Figure("decode.rows", _OF_WEDLM, {"is_streaming": [False]}),
         "wedlm-streaming": Figure("decode.rows", _OF_WEDLM, {"is_streaming": [True]})}),
]  # fmt: skip
"""The commands that make the figures, in this order."""

QUICK = {
    "decode": "--workloads edits --cases 1 --repeats 1 --max-tokens 16",
    "--together": "--workloads edits,free --windows 8 --thresholds 0.3",
    "serve": "--concurrency 1 --chats 1 --rounds 1 --max-tokens 16",
    "sweep": "--workloads edits --chats 1 --max-tokens 24 --num-draft-tokens 2",
    "replay": "--changes 1",
    "--random-models": "--random-models lfm2",
    "--streams": "--streams 2",
    "--by-turn": "--prompt-tokens 300",
}
"""More arguments of commands with these words, for a run that only shows that it works."""

FIGURES = {name: figure for run in RUNS for name, figure in run.figures.items()}
"""All tables, by name."""
