"""`reprise bench sweep`: try sizes of the n-gram table, n, and draft lengths, and measure when drafts pay.

tables: replays long traffic of source files, without a model, by ngram-mod with each table size and each n,
at an M4 Pro's step costs.
break-even: a drafter that knows the answer makes errors at chosen rates, so that every acceptance rate occurs
at every draft length. From these runs on the engine, fits tokens/s = a + b * acceptance and the break-even
acceptance; that of --draft-model is from its own runs.
"""

import argparse
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np

from reprise.bench import document, options
from reprise.bench.answering import PLAIN, Answering, Arm, Case
from reprise.bench.cost_curves import M4_PRO
from reprise.bench.decode import row_of
from reprise.bench.document import Column
from reprise.bench.energy import EnergyMeter
from reprise.bench.experiment import BenchError, Progress, Row, grouped
from reprise.bench.local_engine import LocalEngine, forced_costs
from reprise.bench.options import Flag
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.rules import ServerPlayer, Setup, figures
from reprise.bench.replay.traffic import make_traffic
from reprise.bench.statistics import break_even, fit_line
from reprise.bench.workloads import VERSION, Chat, own_chats
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from reprise.drafters.ngram_mod.drafter import NgramModDrafter
from reprise.drafters.ngram_mod.table import NgramModTables
from reprise.engine.model.loading import load_tokenizer

MEASURED = 24
"""Approximate number of requests replayed at each point; the others only fill the table."""
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The target acceptance rates; the fits use the measured ones."""
MIN_TOKENS = 8
"""Shorter answers are left out of fits: their times are dominated by measurement noise."""

TABLES = {
    "table_sizes": "ngram-mod alone, replayed, under traffic", "ngram_sizes": "The same by n",
    "fits": "Tokens/s = a + b * acceptance, for drafts that are free to make",
    "draft_model": "Break-even of the draft model, its own time included",
}  # fmt: skip
"""Title of each table, by the part of the section that has its rows."""
_PARTS = ("tables", "break-even")

FLAGS = (
    *options.shared(
        model=None, draft_model=None, workloads=("edits", "passage", "free"), prompts=None, max_tokens=96,
        num_draft_tokens=(1, 2, 4, 8, 16), seed=1, **options.OUTPUTS,
    ),
    Flag("--parts", options.names, "NAMES", _PARTS, "Parts of the sweep."),
    Flag("--chats", options.count, "N", 3, "Chats of each workload."),
    Flag("--ngram-sizes", options.levels, "N,M", (2, 4, 8, 12, 16, 24), "N-gram sizes."),
    Flag("--table-entries", options.levels, "N,M", tuple(1 << power for power in range(12, 23)),
         "Table sizes."),
    Flag("--requests", options.levels, "N,M", (100, 1000), "Requests of traffic, of 5,500 tokens or so."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_names("--parts", arguments.parts, _PARTS)
    own, arguments.prompt_tokens = own_chats(arguments.prompts, arguments.workloads), (600,)
    found: dict[str, Any] = {"workloads_version": VERSION}
    result = document.new_document(arguments, sweep=found)
    notes = []
    with Progress() as progress, EnergyMeter() as meter:
        if "tables" in arguments.parts:
            found |= _tables(arguments, progress)
        if "break-even" in arguments.parts:
            longest = max(arguments.num_draft_tokens)
            settings = Settings(
                **options.settings(arguments, "model", "draft_model", "draft_translation"),
                prefix_cache_bytes=0, max_rows=1, keeps_costs=False, num_draft_tokens=longest,
            )  # fmt: skip
            with Answering(arguments, progress, settings, forced_costs(longest), meter) as local:
                found |= measure_break_even(local, own or local.chats(arguments.chats))
                result |= document.new_document(arguments, local.engine.info, sweep=found)
            found["energy"] = meter.source or meter.reason
            differing = sum(one["parity"] == "FAIL" for one in found["points"])
            notes = [
                f"{differing} of {len(found['points'])} drafted answers differ from the plain ones.",
                f"Energy: {found['energy']}. low, high: break-even of single chats.",
            ]
    console = document.make_console(130)
    for part, title in TABLES.items():
        rows = found.get(part, ())
        names = dict.fromkeys(name for name in chain(*rows) if name != "acceptance_by_position")
        if rows:
            columns = [Column(name, name.replace("_", "\n")) for name in names]
            document.print_rows(console, rows, columns, title, group="none")
    document.report(arguments, result, notes, console)
    return 0


def _tables(arguments: argparse.Namespace, progress: Progress) -> dict[str, list[Row]]:
    """Send generated traffic through tables of each size, and of the default size with each n."""
    tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)
    default, longest = Settings(), max(arguments.requests)
    setup = Setup(default, M4_PRO, tokenizer.line_ends)
    progress.show(f"making traffic of {longest:,} requests")
    files = Path(sysconfig.get_path("purelib"))
    traffic = [*make_traffic(files, longest, arguments.seed, tokenizer.encode_answer)]
    found: dict[str, list[Row]] = {"table_sizes": [], "ngram_sizes": []}
    every = product(arguments.requests, arguments.table_entries)
    sizes = [("table_sizes", *one, default.ngram_mod_size) for one in every]
    sizes += [("ngram_sizes", longest, default.ngram_table_entries, n) for n in arguments.ngram_sizes]
    for done, (part, requests, entries, n) in enumerate(sizes):
        progress.show("sizes of tables and n-grams", done / len(sizes))
        found[part].append(fill(setup, traffic[:requests], entries, n))
    return found


def fill(setup: Setup, traffic: Sequence[TokenPair], entries: int, n: int) -> Row:
    """Fill an n-gram table with traffic; return its occupancy and its drafts' figures in the second half.

    entries: number of slots. n: tokens of an n-gram.
    """
    tables = NgramModTables("replay", n, entries)
    settings = replace(setup.settings, draft_type="ngram-mod", ngram_mod_size=n)
    player = ServerPlayer(setup, settings, NgramModDrafter(tables))
    table, outcomes, half = tables.table(""), [], len(traffic) // 2
    measured = range(half, len(traffic), max(1, half // MEASURED))
    for number, request in enumerate(traffic):
        if number in measured:
            outcomes.append(player.play(request))
        else:
            table.learn((*request.prompt, *request.answer))
    return {
        "requests": len(traffic), "entries": entries, "ngram_size": n,
        "occupancy": table.occupied / entries, **figures(outcomes),
    }  # fmt: skip


class ControlledDrafter:
    """Knows the answer from the request's prediction, and drafts each token correctly with a given chance.

    Which tokens are right depends on the answer alone. Sequences without a prediction get no drafts.
    """

    name = "controlled"

    def __init__(self) -> None:
        self.chance = 1.0
        self._drafts: dict[int, list[int]] = {}

    def aim(self, share: float, num_drafted: int) -> None:
        """Set the chance of a right token to reach this acceptance rate at this draft length.

        Tokens after a wrong one count as rejected: the first n of a draft are accepted with chance ** n.
        """
        chances = np.linspace(0.0, 1.0, 1001)
        shares = np.mean([chances**place for place in range(1, num_drafted + 1)], axis=0)
        self.chance = float(np.interp(share, shares, chances))

    def open(self, start: SequenceStart) -> None:
        """Decide for each token of the answer whether it will be drafted correctly."""
        rng = random.Random(repr(tuple(start.prediction)))
        # Instead of a right token, the one before it in the vocabulary; instead of the first, the second.
        drafts = [abs(token - (rng.random() >= self.chance)) for token in start.prediction]
        self._drafts[start.seq] = drafts

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the answer's next tokens, some replaced by wrong ones."""
        tokens = self._drafts[query.seq][: query.limit]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Advance past committed tokens."""
        del self._drafts[seq][: len(tokens)]

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the sequence."""
        del self._drafts[seq]


def measure_break_even(local: Answering, chats: Sequence[Chat]) -> dict[str, list[Row]]:
    """Measure drafts of controlled acceptance, and of the draft model; return the points and the fits.

    The costs of the engine must be forced, so that every draft is verified.
    """
    # Only this drafter receives a request's prediction. Without the other of type suffix it drafts alone.
    local.drafters["prediction"] = oracle = ControlledDrafter()
    suffix = local.drafters.pop("suffix")
    lengths = sorted(local.arguments.num_draft_tokens)

    def arm(share: float, length: int) -> Arm:
        def prepare(engine: LocalEngine) -> None:
            engine.engine.table.reset()
            oracle.aim(share, length)

        return Arm("suffix", length, prepare=prepare)

    cases: dict[str, Case] = {}
    for at, chat in enumerate(chats):
        alone = Case(replace(chat, turns=chat.turns[:1]))
        for row in local.run(alone, PLAIN):
            cases[str(at)] = replace(alone, prediction=tuple(row["tokens"]), is_first=not cases)
    controlled = {f"{share:g} of {length}": arm(share, length) for length, share in product(lengths, LEVELS)}
    runs = local.compare({"plain": PLAIN} | controlled, cases, 1, "controlled acceptance: ")
    local.drafters["suffix"] = suffix
    points: list[Row] = [{"drafts": "controlled"} | one for one in points_of(runs)]
    fits = fit([one for one in points if one["acceptance"] is not None])
    of_model: list[Row] = []
    if local.arguments.draft_model:
        real = {"plain": PLAIN} | {str(length): Arm("draft-model", length) for length in lengths}
        bare = {name: replace(case, prediction=()) for name, case in cases.items()}
        of_model = points_of(local.compare(real, bare, 1, "draft model: "))
    points += [{"drafts": "draft-model"} | one for one in of_model]
    if not points:
        raise BenchError("every answer was too short to measure")
    return {"points": points, "fits": fits, "draft_model": model_needs(of_model)}


def points_of(runs: Sequence[Row]) -> list[Row]:
    """Return a point for each drafted run: the figures of `bench decode`, beside the chat's plain run."""
    plain = {run["case"]: run for run in runs if run["arm"] == "plain"}
    return [
        row_of([run], [one], [])
        | {"chat": int(run["case"]), "parity": "PASS" if run["tokens"] == one["tokens"] else "FAIL"}
        for run in runs
        if run is not (one := plain[run["case"]]) and min(run["num_tokens"], one["num_tokens"]) >= MIN_TOKENS
    ]


def _by_length(
    points: Sequence[Row], needed: Callable[[Sequence[Row]], float]
) -> Iterator[tuple[Row, list[Row]]]:
    """Yield a row of each draft length, with its points.

    needed: returns the break-even acceptance of points. low, high: of the points of single chats.
    """
    for (length,), alike in grouped(points, "num_draft_tokens").items():
        of_chats = [*filter(np.isfinite, map(needed, grouped(alike, "chat").values()))]
        even = needed(alike)
        yield {
            "num_draft_tokens": length, "break_even": even if np.isfinite(even) else None,
            "low": min(of_chats, default=None), "high": max(of_chats, default=None), "n": len(alike),
        }, alike  # fmt: skip


def _line(points: Sequence[Row]) -> tuple[float, float]:
    x, y = (np.array([one[name] for one in points]) for name in ("acceptance", "speedup"))
    return fit_line(x, y)


def fit(points: Sequence[Row]) -> list[Row]:
    """Fit speedup = a + b * acceptance for each draft length; return rows with a and b in tokens/s.

    step_cost: of a step with a draft of this length, in plain steps. A step commits 1 + length * acceptance
    tokens; the cost is read at an acceptance of 1/2, where the fit is best.
    """
    plain_tps = harmonic_mean([one["plain_tps"] for one in points]) if points else 0.0
    rows = []
    for row, alike in _by_length(points, lambda some: break_even(*_line(some))):
        a, b = _line(alike)
        step_cost = (1 + row["num_draft_tokens"] / 2) / (a + b / 2)
        rows.append(row | {"a": a * plain_tps, "b": b * plain_tps, "step_cost": step_cost})
    return rows


def model_needs(points: Sequence[Row]) -> list[Row]:
    """Return the acceptance from which the draft model pays, by draft length.

    The draft model's time is part of the steps. If a step costs c plain steps, the draft model pays from an
    acceptance of (c - 1) / length.
    """

    def needed(some: Sequence[Row]) -> float:
        each = [(one["tokens_per_forward"] / one["speedup"] - 1) / one["num_draft_tokens"] for one in some]
        return float(np.mean(each))

    return [row for row, _ in _by_length(points, needed)]
