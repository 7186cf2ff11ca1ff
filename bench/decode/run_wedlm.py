"""`reprise bench wedlm`: let a WeDLM model draft for itself, or decode in windows, and count what it gains.

Chats are answered plainly, with lookup drafts, with the model's own drafts, with both, and in windows with
every combination of window, threshold and penalty. Drafts are decided upon by three price lists: free, where
every width costs the same; what steps cost on this machine; and what they cost on another one, as published.
Exit status 1 if a drafted answer differs from the plain one by a token.

right: answers that equal the reference. same: answers that equal the plain one token by token. generated/fed:
committed tokens per token that was fed, p_cache of the paper.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

from reprise.bench import document, options, outputs
from reprise.bench.cost_curves import M4_PRO
from reprise.bench.decode.answering import PLAIN, Answering, Arm, Cases, make_cases, settings_of
from reprise.bench.errors import ArgumentsError
from reprise.bench.experiment import Row, grouped
from reprise.bench.local_engine import equal_costs
from reprise.bench.options import Flag
from reprise.bench.tables import Column
from reprise.bench.workloads import WORKLOADS
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.request import WindowSettings
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.text.tokenizer import Tokenizer

_SUMMED = (
    "num_tokens", "num_forwards", "num_fed", "decode_s", "plain_s", "charged_s", "charged_plain_s", "answers",
    "right", "same",
)  # fmt: skip
DRAFTED = {"lookup": Arm("suffix"), "own": Arm("wedlm"), "lookup and own": Arm("auto")}
COLUMNS = [
    Column("chats", "chats", is_key=True), Column("arm", "drafts, or window", is_key=True),
    Column("costs", "costs of steps", is_key=True), Column("tokens_per_forward", "tokens per\nforward", "2"),
    Column("fed_per_forward", "fed per\nforward", "1"), Column("generated_per_fed", "generated\n/ fed", "2"),
    Column("right", "right", "%"), Column("same", "same", "%"), Column("speedup", "speed of plain", "2"),
]  # fmt: skip

FLAGS = (
    *options.shared(
        model=BUNDLED_MODEL / "wedlm", workloads=("edits", "records", "quotes", "passages", "free"),
        max_tokens=256, cases=4, repeats=1, seed=1, json=None, csv=None,
    ),
    Flag("--windows", options.levels, "N,M", (4, 8, 16), "Window sizes of windowed decoding."),
    Flag("--thresholds", options.numbers, "X,Y", (0.1, 0.3, 0.6), "Entropy thresholds of windowed decoding."),
    Flag("--penalties", options.numbers, "X,Y", (0.01, 0.02), "Position penalties of windowed decoding."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_names("--workloads", arguments.workloads, tuple(WORKLOADS))
    published = StepCosts({(1, width): cost for width, cost in M4_PRO.points}, is_learned=False)
    lists = {"free": equal_costs(), "measured here": None, M4_PRO.name: published}
    rows: list[Row] = []
    for name, costs in lists.items():
        with outputs.Work() as work, Answering(arguments, work, settings_of(arguments), costs) as local:
            if (token := local.engine.info.mask_token_id) is None:
                raise ArgumentsError(f"{arguments.model} is not a WeDLM model")
            arms = {"plain": PLAIN, **DRAFTED, **({} if costs else _windowed(arguments, token))}
            cases = make_cases(local.chats(arguments.cases))
            runs = local.compare(arms, cases, arguments.repeats, f"{name}: ")
            rows += _rows_of(runs, cases, local.engine.tokenizer, name)
            result = document.new_document(arguments, local.engine.info)
    result["wedlm"] = {"rows": rows, "repeats": arguments.repeats, "curve": M4_PRO.name}
    title = f"{result['model']['name']}: the model's own drafts, and windowed decoding"
    outputs.report(arguments, result, rows, outputs.Table(COLUMNS, title, group="chats"))
    return int(any(row["same"] < 1 and not row["is_streaming"] for row in rows))


def _windowed(arguments: argparse.Namespace, token: int) -> dict[str, Arm]:
    """Return the arms that decode in windows."""
    asked = product(arguments.windows, arguments.thresholds, arguments.penalties, (False, True))
    return {
        f"window {size}, threshold {limit:g}, penalty {penalty:g}{', anchor' * anchor}": Arm(
            window_settings=WindowSettings(token, size, limit, penalty, anchor)
        )
        for size, limit, penalty, anchor in asked
    }


def _rows_of(runs: Sequence[Row], cases: Cases, tokenizer: Tokenizer, costs: str) -> Iterator[Row]:
    """Yield a row for each kind of chats and arm; of one with windows also a row with the published costs.

    costs: the price list by which the runs drafted.
    """
    plain = {(run["case"], run["turn"]): run for run in runs if run["arm"] == "plain"}
    counted = []
    for run in runs:
        turn, alone = cases[run["case"]].chats[0].turns[run["turn"] - 1], plain[run["case"], run["turn"]]
        text = tokenizer.decode([token for token in run["tokens"][0] if token not in tokenizer.eos_ids])
        counted.append({
            **run, "chats": "free" if turn.reference is None else "one right answer", "answers": 1,
            "right": text.strip() == (turn.reference or "").strip(),
            "same": run["tokens"] == alone["tokens"], "plain_s": alone["decode_s"],
        })  # fmt: skip
    for (chats, arm), of_arm in grouped(counted, "chats", "arm").items():
        total = {name: sum(run[name] for run in of_arm) for name in _SUMMED}
        per_forward, fed = (total[name] / total["num_forwards"] for name in ("num_tokens", "num_fed"))
        speedups: dict[str, float | None] = {costs: total["plain_s"] / total["decode_s"]}
        if costs == "free":
            speedups[costs] = None
        elif costs == M4_PRO.name:
            speedups[costs] = total["charged_plain_s"] / total["charged_s"]
        if is_streaming := arm.startswith("window"):
            speedups[M4_PRO.name] = per_forward / M4_PRO.cost(round(fed))
        for name, speedup in speedups.items():
            yield {
                "chats": chats, "arm": arm, "answers": total["answers"], "is_streaming": is_streaming,
                "tokens_per_forward": per_forward, "fed_per_forward": fed,
                "generated_per_fed": per_forward / fed,
                "right": None if chats == "free" else total["right"] / total["answers"],
                "same": total["same"] / total["answers"], "costs": name, "speedup": speedup,
            }  # fmt: skip
