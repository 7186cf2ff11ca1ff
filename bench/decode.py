"""`reprise bench decode`: decode chats plainly and with drafts, and compare tokens and times.

Each workload runs once unmeasured, then --repeats times plainly and in every draft configuration, all
interleaved, on one engine without HTTP. The best run of each turn gives the speed; all pairs of plain and
drafted runs are compared. Exit status 1 if any drafted answer differs by a token; the report says where.

Drafter tables are cleared before each chat and there is no prefix cache, so a run shows a chat's gain from
its own text; with --warm also its gain from a model's earlier answers. With several
--costs, --draft-model or --strategies everything is measured with each. A WeDLM model drafts for itself
(--draft-types wedlm), and decodes in --windows, where answers may differ. By default this takes a quarter of
an hour on two cores, with --workloads or --cases less.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from statistics import mean
from typing import Any

from reprise.bench import document, options
from reprise.bench.answering import (
    PLAIN,
    Answering,
    Arm,
    Case,
    Cases,
    check,
    samples_of,
)
from reprise.bench.document import Column
from reprise.bench.energy import EnergyMeter
from reprise.bench.experiment import ArgumentsError, Progress, Row, grouped, total_parity
from reprise.bench.local_engine import LocalEngine, equal_costs, forced_costs
from reprise.bench.options import Flag
from reprise.bench.statistics import loops, ratio
from reprise.bench.workloads import ENGLISH, VERSION, WORKLOADS, Chat, own_chats
from reprise.config.settings import Settings
from reprise.drafters.base import SequenceStart, finish
from reprise.engine.interface.request import WindowSettings
from reprise.engine.text.tokenizer import Tokenizer

DRAFT_TYPES = (
    "auto",
    "suffix",
    "ngram-simple",
    "ngram-mod",
    "draft-model",
    "mtp",
    "eagle3",
    "dflash",
    "wedlm",
)
STRATEGIES = ("auto", "context", "shared", "none")
TRANSLATED = ("translated", "absorbed", "resynchronised", "skipped")
"""Outcomes of translated drafts; see reprise.engine.speculative.translation.TranslationCounts."""

_ABOUT = ("workload", "draft_type", "num_draft_tokens", "prompt_tokens", "arm", "memory", "occupancy")
_NUMBERS = (
    "num_tokens", "num_prefilled", "num_forwards", "decode_s", "prefill_s", "first_token_s", "drafter_s",
)  # fmt: skip

COLUMNS = [
    Column("workload", "workload", is_key=True), Column("prompt_tokens", "prompt"),
    Column("turn", "turn", lambda value: "all" if value is None else str(value)),
    Column("draft_type", "drafts", is_key=True),
    Column("num_draft_tokens", "max\nlen", trivial=31), Column("window", "window"),
    Column("costs", "costs", trivial="own"), Column("draft_model", "draft model"),
    Column("strategy", "stra-\ntegy", trivial="auto"), Column("memory", "table", trivial=""),
    Column("occupancy", "occu-\npied", lambda share: "-" if share is None else f"{share:.2%}"),
    Column("plain_tps", "plain\ntok/s", "0"),
    Column("decode_tps", "tok/s", "0"), Column("speedup", "speed\nup", "2"),

    Column("acceptance", "ac-\ncepted", "%"), Column("drafted_share", "of\ntext", "%"),
    Column("tokens_per_forward", "tok/\nfwd", "2"), Column("fed_per_forward", "fed/\nfwd", "1"),
    Column("generated_per_fed", "tok/\nfed", "2"), Column("right", "right", "%"), Column("same", "same", "%"),
    Column("drafter_us_per_token", "us/\ntoken", "0"), Column("ttft_ms", "first\nms", "0"),
    Column("prefill_tps", "pre-\nfill", "0"), Column("energy_j_per_token", "J/\ntoken", "2"),
    *(Column(name, f"{name[:5]}-\n{name[5:]}", trivial=0) for name in TRANSLATED), Column("parity", "parity"),
]  # fmt: skip
"""The columns of the table, in display order; the documents have more."""

NOTES = (
    "tok/s: decoding speed after prefill, best run of each turn; counts are over all runs.",
    "of text: share of the answer's tokens that came from drafts. max len: maximum draft length.",
    "us/token: time spent in drafters. first ms: time to first token without a cache. pre-fill: tokens/s.",
    "parity: every plain run compared with every drafted run, by token ids.",
)
EPILOG = "workloads:\n" + "\n".join(f"  {one.name:17} {one.summary}" for one in WORKLOADS.values())

FLAGS = (
    *options.shared(
        model=None, workloads=ENGLISH, prompts=None, draft_types=("auto",), num_draft_tokens=(31,),
        prompt_tokens=None, max_tokens=256, cases=None, repeats=3, seed=1, **options.OUTPUTS,
    ),
    Flag("--draft-model", options.model, "MODEL", [], "Draft model, which draft-model and auto then use; may "
         "be repeated.", is_repeated=True),
    Flag("--strategies", options.names, "A,B", ("auto",), "Of a draft model with another vocabulary: any of "
         f"{', '.join(STRATEGIES)} (see --draft-translation of `reprise serve`)."),
    Flag("--costs", options.names, "A,B", ("own",), "Step costs to decide by: own (as this machine shows "
         "them), forced (every draft is verified whole), flat (a step costs the same at every width)."),
    Flag("--warm", options.listed(options.model), "MODEL,..", (), "Also with the answers of these models to "
         "the same chats in the drafters' tables; they need the same vocabulary."),
    Flag("--windows", options.levels, "N,M", (), "Window sizes of a WeDLM model's windowed decoding."),
    Flag("--thresholds", options.numbers, "X,Y", (0.1, 0.3, 0.6), "Entropy thresholds of these."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_drafts(arguments, DRAFT_TYPES)
    options.check_names("--strategies", arguments.strategies, STRATEGIES)
    own = own_chats(arguments.prompts, arguments.workloads)
    options.check_names("--costs", arguments.costs, ("own", "forced", "flat"))
    result: document.Document = {}
    rows: list[Row] = []
    with Progress() as progress, EnergyMeter() as meter:
        ways = product(arguments.draft_model or [None], arguments.strategies, arguments.costs)
        for draft_model, strategy, prices in ways:
            chosen: dict[str, Any] = {"draft_translation": strategy}
            settings = Settings(
                model=arguments.model and str(arguments.model), prefix_cache_bytes=0,
                draft_model=str(draft_model) if draft_model else None,
                num_draft_tokens=max(arguments.num_draft_tokens), **chosen,
            )  # fmt: skip
            longest = settings.num_draft_tokens
            costs = {"own": None, "forced": forced_costs(longest), "flat": equal_costs(longest + 1)}[prices]
            with Answering(arguments, progress, settings, costs, meter) as local:
                made = measure(local, own)
            about = {
                "costs": prices, "draft_model": draft_model and draft_model.resolve().name,
                "strategy": strategy,
            }  # fmt: skip
            rows += [about | row for row in made["decode"]["rows"]]
            # The first engine's document, unless only a later one learned what steps cost.
            result = made if not result or not result["cost_curve"] else result
    result["decode"] |= {"rows": rows, "energy": meter.source or meter.reason}
    notes = [*NOTES, *result["decode"]["skipped"], *divergences(rows)]
    has_more = arguments.draft_model or arguments.windows or arguments.warm or arguments.costs != ("own",)
    console = document.make_console(160 if has_more else 120)
    title = f"Decoding {result['model']['name']} with drafts, compared with plain decoding"
    document.print_rows(console, rows, COLUMNS, title)
    document.report(arguments, result, notes, console)
    return int(any(row["parity"] == "FAIL" and not row.get("window") for row in rows))


def measure(local: Answering, own: Sequence[Chat] | None) -> document.Document:
    """Answer chats in all arms; return a result document."""
    arguments = local.arguments
    chats = own[: arguments.cases] if own else local.chats(arguments.cases or 1)
    kinds = [(chat.workload, chat.prompt_tokens) for chat in chats]
    cases = {str(at): Case(chat, kinds.index(kinds[at]) == at) for at, chat in enumerate(chats)}
    # Before the runs, so that the machine's load is that of other processes.
    result = document.new_document(arguments, local.engine.info, local.step_costs)
    runs = local.compare(_arms(local, cases), cases, arguments.repeats)
    if not runs:
        raise ArgumentsError("no chats: all are too long for this model's context")
    is_wedlm = local.engine.info.mask_token_id is not None
    for one in runs:
        turn = cases[one["case"]].chat.turns[one["turn"] - 1]
        one["right"] = _is_right(local.engine.tokenizer, one, turn.reference) if is_wedlm else None
    result["decode"] = {
        "workloads_version": VERSION,
        "rows": rows_of(runs, check(local, cases, runs), with_plain=is_wedlm),
        "samples": samples_of(runs, cases, local.engine.tokenizer),
        "skipped": [f"{one}: chats skipped, too long for the model's context" for one in local.skipped],
    }
    return result


def _arms(local: Answering, cases: Cases) -> dict[str, Arm]:
    """Return the arms of an engine: plain, each draft type and length with each memory, and the windows."""
    given, token = local.arguments, local.engine.info.mask_token_id
    if token is None and (given.windows or "wedlm" in given.draft_types):
        raise ArgumentsError(f"{given.model or 'the bundled model'} is not a WeDLM model")
    arms = {"plain": PLAIN}
    memories: dict[str, Callable[[LocalEngine], object]] = {"cold" if given.warm else "": PLAIN.prepare}
    for folder in given.warm:
        memories[folder.resolve().name] = partial(_fill, known=_answers(local, folder, cases))
    lengths, kinds = given.num_draft_tokens, given.draft_types
    for length, kind, (memory, prepare) in product(lengths, kinds, memories.items()):
        arms[f"{kind} {length} {memory}".strip()] = Arm(kind, length, prepare=prepare, memory=memory)
    for size, limit in product(given.windows, given.thresholds):
        assert token is not None
        name = f"window {size}, threshold {limit:g}"
        arms[name] = Arm(window_settings=WindowSettings(token, size, limit))
    return arms


Known = list[tuple[tuple[int, ...], tuple[int, ...]]]
"""Prompts and answers, in tokens."""


def _answers(local: Answering, folder: Path, cases: Cases) -> Known:
    """Return a model's plain answers to all turns. Raises ArgumentsError if its vocabulary is another one."""
    settings = Settings(model=str(folder), prefix_cache_bytes=0)
    with Answering(local.arguments, local.progress, settings) as other:
        if other.engine.tokenizer.fingerprint != local.engine.tokenizer.fingerprint:
            raise ArgumentsError(f"--warm: {folder} has another vocabulary than the model")
        return [
            (other.prompt_of(case.chat.turns[row["turn"] - 1]), tuple(row["tokens"]))
            for case in cases.values()
            for row in other.run(case, PLAIN)
        ]


def _fill(local: LocalEngine, known: Known) -> None:
    """Feed answers to the drafters, as if requests had ended with them."""

    def learn() -> None:
        for (prompt, answer), drafter in product(known, local.drafters.values()):
            finish(drafter.open(SequenceStart(-1, prompt)))
            drafter.observe(-1, answer)
            finish(drafter.close(-1))

    local.engine.table.reset()
    local.engine.first_engine.between_steps(learn)


def _is_right(tokenizer: Tokenizer, run: Row, reference: str | None) -> bool | None:
    text = tokenizer.decode([token for token in run["tokens"] if token not in tokenizer.eos_ids])
    return None if reference is None else text.strip() == reference.strip()


def rows_of(runs: Sequence[Row], checks: Sequence[Row], with_plain: bool = False) -> list[Row]:
    """Return a row for each workload, prompt length and drafting arm, and for each of several turns.

    checks: rows of reprise.bench.answering.check(). with_plain: add rows of plain decoding, and for all rows
        the tokens fed per forward pass and the right answers.
    straight: the same figures without the cases in which a plain answer loops.
    """
    rows = []
    for (*_, arm), of_arm in grouped(runs, "workload", "prompt_tokens", "arm").items():
        if arm == "plain" and not with_plain:
            continue
        cases = {run["case"] for run in of_arm}
        plain = [run for run in runs if run["arm"] == "plain" and run["case"] in cases]
        checked = [one for one in checks if one["arm"] == arm and one["case"] in cases]
        whole = row_of(of_arm, plain, checked)
        looping = {run["case"] for run in plain if loops(run["tokens"])}
        kept = [[one for one in some if one["case"] not in looping] for some in (of_arm, plain, checked)]
        whole["cases"], whole["straight_cases"] = len(cases), len(cases - looping)
        whole["straight"] = row_of(*kept) if cases - looping else None
        whole |= _of_windows(of_arm, whole) if with_plain else {}
        rows.append({"turn": None} | whole)
        turns = sorted({run["turn"] for run in of_arm})
        for turn in turns if len(turns) > 1 else ():
            of_turn = [[one for one in some if one["turn"] == turn] for some in (of_arm, plain, checked)]
            rows.append({"turn": turn} | row_of(*of_turn))
    return rows


def _of_windows(runs: Sequence[Row], row: Row) -> Row:
    """Return the fields of a WeDLM model's row."""
    judged = [run["right"] for run in runs if run["right"] is not None]
    fed = ratio(_sum(runs, "num_fed"), _sum(runs, "num_forwards"))
    return {
        "window": row["arm"] if row["arm"].startswith("window") else None, "fed_per_forward": fed,
        "generated_per_fed": ratio(row["tokens_per_forward"], fed), "right": mean(judged) if judged else None,
        "same": 1 - (ratio(row["parity_differing"], row["parity_pairs"]) or 0.0),
    }  # fmt: skip


def row_of(drafted: Sequence[Row], plain: Sequence[Row], checks: Sequence[Row]) -> Row:
    """Return the table row of one arm, from its rows and those of plain runs of the same cases.

    Times are those of the best run of each turn, counts are over all runs.
    """
    best, plain_best = _sums_of_best(drafted), _sums_of_best(plain)
    tps, plain_tps = (ratio(one["num_tokens"], one["decode_s"]) for one in (best, plain_best))
    speedup = ratio(tps, plain_tps)
    # The best runs of several turns may be of different rounds, so their ratio can exceed that of any round.
    of_rounds = map(ratio, _speeds(drafted), _speeds(plain))
    speedups = [one for one in (speedup, *of_rounds) if one]
    num_drafted, num_accepted, num_tokens = (
        _sum(drafted, name) for name in ("num_drafted", "num_accepted", "num_tokens")
    )
    by_position = [
        [*map(sum, zip(*pairs, strict=True))]
        for pairs in zip_longest(*(run["by_position"] for run in drafted), fillvalue=(0, 0))
    ]
    return {
        **{name: drafted[0].get(name) for name in _ABOUT},
        "tokens": best["num_tokens"], "decode_tps": tps, "plain_tps": plain_tps, "speedup": speedup,
        "speedup_low": min(speedups, default=None), "speedup_high": max(speedups, default=None),
        "prefill_tps": ratio(best["num_prefilled"], best["prefill_s"]),
        "ttft_ms": 1000 * best["first_token_s"] / best["turns"],
        "acceptance": ratio(num_accepted, num_drafted),
        "acceptance_by_position": [accepted / drafted for drafted, accepted in by_position],
        "drafted_by_position": [drafted for drafted, _ in by_position],
        "tokens_per_forward": ratio(num_tokens, _sum(drafted, "num_forwards")),
        "drafted_share": ratio(num_accepted, num_tokens),
        **{name: sum(run["translation"].get(name, 0) for run in drafted) for name in TRANSLATED},
        "drafter_us_per_token": ratio(1e6 * _sum(drafted, "drafter_s"), num_tokens),
        **total_parity(checks),
        "energy_j_per_token": ratio(_sum(drafted, "energy_j"), num_tokens),
        "plain_energy_j_per_token": ratio(_sum(plain, "energy_j"), _sum(plain, "num_tokens")),
    }  # fmt: skip


def _sum(runs: Iterable[Row], name: str) -> Any:
    """Return the sum of a figure; None if a run lacks it."""
    values = [run[name] for run in runs]
    return None if None in values else sum(values)


def _sums_of_best(runs: Sequence[Row]) -> Row:
    """Return the sums over turns of the lowest numbers of each, and the number of turns."""
    turns = grouped(runs, "case", "turn").values()
    lowest = {name: sum(min(run[name] for run in some) for some in turns) for name in _NUMBERS}
    return lowest | {"turns": len(turns)}


def _speeds(runs: Sequence[Row]) -> list[float | None]:
    """Return the speed of each round."""
    rounds = sorted(grouped(runs, "round").items())
    return [ratio(_sum(some, "num_tokens"), _sum(some, "decode_s")) for _, some in rounds]


def divergences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each row with a divergence, windowed decoding aside."""
    names = ("draft_model", "strategy", "workload", "prompt_tokens", "turn", "draft_type", "num_draft_tokens")
    for row in rows:
        if (first := row["first_divergence"]) and not row.get("window"):
            what = ", ".join(str(row[name]) for name in names if row.get(name))
            pairs = f"{row['parity_differing']} of {row['parity_pairs']} pairs of runs differ"
            lead = f"the best token leads the second best by {first['margin']:.2g}"
            yield f"FAIL: {what}: {pairs}; the first at token {first['token']}, where {lead}"
