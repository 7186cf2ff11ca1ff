"""`reprise bench sweep`: try sizes of the n-gram table, n, and draft lengths, and measure when drafts pay.

tables: replays long traffic of source files, without a model, by ngram-mod with each table size and each n.
break-even: a drafter that knows the answer makes errors at chosen rates, so that every acceptance rate occurs
at every draft length. From these runs on the engine, fits tokens/s = a + b * acceptance and the break-even
acceptance; that of --draft-model is from its own runs.
"""

import argparse
import random
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from reprise.bench import document, options
from reprise.bench.answering import PLAIN, Answering, Arm, Case
from reprise.bench.cost_curves import built_in, find_curve
from reprise.bench.decode import row_of
from reprise.bench.document import Column
from reprise.bench.energy import EnergyMeter
from reprise.bench.experiment import BenchError, Progress, Row, grouped
from reprise.bench.local_engine import LocalEngine, forced_costs
from reprise.bench.options import Flag
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.rules import ServerPlayer, Setup, figures
from reprise.bench.replay.traffic import AGAIN, make_traffic
from reprise.bench.statistics import Mask, break_even, fit_line, jackknife, mean_of, ratio
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
    "slope": "Break-even acceptance = r + beta * draft length",
    "draft_model": "Break-even of the draft model, its own time included",
}  # fmt: skip
"""Title of each table, by the part of the section that has its rows."""
_PARTS = ("tables", "break-even")

FLAGS = (
    *options.shared(
        model=None, draft_model=None, workloads=("edits", "passage", "free"), prompts=None,
        prompt_tokens=None, max_tokens=96, num_draft_tokens=(1, 2, 4, 8, 16), seed=1, **options.OUTPUTS,
    ),
    Flag("--parts", options.names, "NAMES", _PARTS, "Parts of the sweep."),
    Flag("--chats", options.count, "N", 3, "Chats of each workload; intervals need at least 3."),
    Flag("--ngram-sizes", options.levels, "N,M", (2, 4, 8, 12, 16, 24), "N-gram sizes."),
    Flag("--table-entries", options.levels, "N,M", tuple(1 << power for power in range(12, 23)),
         "Table sizes."),
    Flag("--requests", options.levels, "N,M", (100, 1000), "Requests of traffic, of 5,500 tokens or so."),
    Flag("--cost-curve", str, "CURVE", "apple-m4-pro-4bit", "Step costs of the replay: those of a result "
         f"document, or a built-in curve: {', '.join(built_in())}."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_names("--parts", arguments.parts, _PARTS)
    curve, own = find_curve(arguments.cost_curve), own_chats(arguments.prompts, arguments.workloads)
    found: dict[str, Any] = {"workloads_version": VERSION, "curve": curve.name}
    result = document.new_document(arguments, sweep=found)
    with Progress() as progress, EnergyMeter() as meter:
        if "tables" in arguments.parts:
            tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)
            setup = Setup(Settings(), curve, tokenizer.line_ends)
            found |= _tables(arguments, setup, tokenizer.encode_answer, progress)
        if "break-even" in arguments.parts:
            longest = max(arguments.num_draft_tokens)
            settings = Settings(
                **options.settings(arguments, "model", "draft_model", "draft_translation"),
                prefix_cache_bytes=0, max_rows=1, keeps_costs=False, num_draft_tokens=longest,
            )  # fmt: skip
            with Answering(arguments, progress, settings, forced_costs(longest), meter) as local:
                found |= measure_break_even(local, own or [*chain(*local.chats(arguments.chats, True))])
                result |= document.new_document(arguments, local.engine.info, sweep=found)
            found["energy"] = meter.source or meter.reason
    console = document.make_console(130)
    for part, title in TABLES.items():
        rows = found.get(part, ())
        names = dict.fromkeys(name for name in chain(*rows) if name != "acceptance_by_position")
        if rows:
            columns = [Column(name, name.replace("_", "\n")) for name in names]
            document.print_rows(console, rows, columns, title, group="none")
    flat = [{"part": part, **row} for part in (*TABLES, "points") for row in found.get(part, ())]
    document.report(arguments, result, flat, _conclusions(found), console)
    return 0


def _conclusions(found: Mapping[str, Any]) -> Iterator[str]:
    """Describe how the break-even grows with the draft length, and what the points are."""
    for line in found.get("slope", ()):
        yield (
            "Each additional draft token changes the acceptance needed to break even by "
            f"{100 * line['beta']:+.1f} percentage points: alpha = {line['r']:.3f} {line['beta']:+.4f} k."
        )
    if points := found.get("points"):
        differing = sum(one["parity"] == "FAIL" for one in points)
        yield f"{differing} of {len(points)} drafted answers differ from the plain ones."
        yield f"Energy: {found['energy']}. 95 % intervals hold for such chats on this machine only."


def _tables(
    arguments: argparse.Namespace, setup: Setup, encode: Any, progress: Progress
) -> dict[str, list[Row]]:
    """Send generated traffic through tables of each size, and of the default size with each n."""
    default, longest = Settings(), max(arguments.requests)
    progress.show(f"making traffic of {longest:,} requests")
    traffic = [*make_traffic(Path(sysconfig.get_path("purelib")), longest, arguments.seed, encode)]
    found: dict[str, list[Row]] = {"table_sizes": [], "ngram_sizes": []}
    every = product(arguments.requests, arguments.table_entries)
    sizes = [("table_sizes", *one, default.ngram_mod_size) for one in every]
    sizes += [("ngram_sizes", longest, default.ngram_table_entries, n) for n in arguments.ngram_sizes]
    progress.plan(len(sizes))
    for part, requests, entries, n in sizes:
        progress.show("sizes of tables and n-grams")
        found[part].append(fill(setup, traffic[:requests], entries, n))
        progress.advance()
    return found


def fill(setup: Setup, traffic: Sequence[TokenPair], entries: int, n: int) -> Row:
    """Fill an n-gram table with traffic; return its occupancy and its drafts' figures in the second half.

    entries: number of slots. n: tokens of an n-gram.
    overwritten: share of written tokens that replaced another. known: share of answer tokens that the table
        predicts one by one; known_again: the same for repeated answers.
    """
    tables = NgramModTables("replay", n, entries)
    settings = replace(setup.settings, draft_type="ngram-mod", ngram_mod_size=n)
    player = ServerPlayer(setup, settings, NgramModDrafter(tables))
    table, outcomes, half = tables.table(""), [], len(traffic) // 2
    measured = range(half, len(traffic), max(1, half // MEASURED))
    known, again = list[bool](), list[bool]()
    for number, request in enumerate(traffic):
        if number not in measured:
            table.learn((*request.prompt, *request.answer))
            continue
        table.learn(request.prompt)
        text = (*request.prompt[-n:], *request.answer)
        slots = table.slots(table.hashes(np.asarray(text, np.int64))).tolist()
        found = [table.token(slot) == token for slot, token in zip(slots, text[n:], strict=True)]
        known += found
        again += found if request.workload == AGAIN else []
        outcomes.append(player.play(request))
    return {
        "requests": len(traffic), "entries": entries, "ngram_size": n, "occupancy": table.occupied / entries,
        "overwritten": ratio(tables.counts.overwrites, tables.counts.inserts),
        "known": ratio(sum(known), len(known)), "known_again": ratio(sum(again), len(again)),
        **figures(outcomes),
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
    # Only this drafter receives a request's prediction.
    local.drafters["prediction"] = oracle = ControlledDrafter()
    lengths, has_model = sorted(local.arguments.num_draft_tokens), bool(local.arguments.draft_model)

    def arm(share: float, length: int) -> Arm:
        def prepare(engine: LocalEngine, _: Case) -> None:
            engine.engine.table.reset()
            oracle.aim(share, length)

        # Drafts come from the oracle alone: type draft-model uses no lookups.
        return Arm("draft-model", length, prepare=prepare)

    cases: dict[str, Case] = {}
    for at, chat in enumerate(chats):
        alone = Case((replace(chat, turns=tuple(turn for turn in chat.turns if turn.is_measured)[:1]),))
        for row in local.run(alone, PLAIN):
            cases[str(at)] = replace(alone, prediction=tuple(row["tokens"][0]), is_first=not cases)
    controlled = {"plain": PLAIN} | {
        f"{share:g} of {length}": arm(share, length) for length, share in product(lengths, LEVELS)
    }
    runs = local.compare(controlled, cases, 1, "controlled acceptance: ")
    points = [{"drafts": "controlled"} | one for one in points_of(runs)]
    if has_model:
        real = {"plain": PLAIN} | {str(length): Arm("draft-model", length) for length in lengths}
        bare = {name: replace(case, prediction=()) for name, case in cases.items()}
        runs = local.compare(real, bare, 1, "draft model: ")
        points += [{"drafts": "draft-model"} | one for one in points_of(runs)]
    if not points:
        raise BenchError("every answer was too short to measure")
    fits, slope = fit(
        [one for one in points if one["drafts"] == "controlled" and one["acceptance"] is not None]
    )
    of_model = [one for one in points if one["drafts"] == "draft-model"]
    return {"points": points, "fits": fits, "slope": slope, "draft_model": model_needs(of_model)}


def points_of(runs: Sequence[Row]) -> list[Row]:
    """Return a point for each drafted run: the figures of `bench decode`, beside the chat's plain run."""
    plain = {run["case"]: run for run in runs if run["arm"] == "plain"}
    return [
        row_of([run], [one], [])
        | {"chat": int(run["case"]), "parity": "PASS" if run["tokens"] == one["tokens"] else "FAIL"}
        for run in runs
        if run is not (one := plain[run["case"]]) and min(run["num_tokens"], one["num_tokens"]) >= MIN_TOKENS
    ]


def fit(points: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Fit speedup = a + b * acceptance for each draft length, and break-even = r + beta * length over them.

    Returns rows of the first, with a and b in tokens/s, and a row of the second; none with fewer than two
    break-even acceptances. step_cost: of a step with a draft of this length, in plain steps. A step commits
    1 + length * acceptance tokens; the cost is read at an acceptance of 1/2, where the fit is best.
    """
    of, x, y = (
        np.array([one[name] for one in points]) for name in ("num_draft_tokens", "acceptance", "speedup")
    )
    lengths = np.unique(of)
    # A harmonic mean, because speeds are rates.
    plain_tps = len(points) / sum(1 / one["plain_tps"] for one in points)

    def lines(mask: Mask) -> list[tuple[float, float]]:
        return [fit_line(x[mask & (of == length)], y[mask & (of == length)]) for length in lengths]

    def estimate(mask: Mask) -> list[float]:
        evens = np.array([break_even(*line) for line in lines(mask)])
        known = np.isfinite(evens)
        slope = fit_line(lengths[known], evens[known]) if known.sum() > 1 else (np.nan, np.nan)
        return [*slope, *evens]

    r, beta, *evens = jackknife([one["chat"] for one in points], estimate)
    fits = [
        {"num_draft_tokens": length, "a": a * plain_tps, "b": b * plain_tps, **even.fields("break_even"),
         "n": int((of == length).sum()), "step_cost": (1 + length / 2) / (a + b / 2)}
        for length, (a, b), even in zip(lengths.tolist(), lines(np.full(len(of), True)), evens, strict=True)
    ]  # fmt: skip
    return fits, [{"r": r.value, **beta.fields("beta")}] if np.isfinite(r.value) else []


def model_needs(points: Sequence[Row]) -> list[Row]:
    """Return the acceptance from which the draft model pays, by draft length.

    The draft model's time is part of the steps. If a step costs c plain steps, the draft model pays from an
    acceptance of (c - 1) / length.
    """
    return [
        {"num_draft_tokens": length}
        | mean_of(
            (one["tokens_per_forward"] / one["speedup"] - 1) / length for one in alike
        ).fields("break_even")
        for (length,), alike in grouped(points, "num_draft_tokens").items()
    ]  # fmt: skip
