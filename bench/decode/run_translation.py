"""`reprise bench translation`: measure drafts of models with another vocabulary, by translation strategy.

For draft models x translation strategies x workloads x draft lengths, measure how many drafted tokens are
accepted, and the speedup against plain decoding of the same chats, alternating in the same run. Drafts come
from the draft model alone, and all are verified. An additional row has the lengths that the engine chooses,
leaving out drafts that do not pay. Exit status 1 if any token differs.
"""

import argparse
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from reprise.bench import options, outputs
from reprise.bench.decode.answering import PLAIN, Arm, settings_of
from reprise.bench.decode.rows import divergences
from reprise.bench.decode.run_decode import measure
from reprise.bench.economics.trials import forced_costs
from reprise.bench.experiment import Row
from reprise.bench.options import Flag
from reprise.bench.tables import Column
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.speculative.translation import Strategy

BUNDLED_DRAFTS = tuple(BUNDLED_MODEL / name for name in ("draft_polish", "draft"))
STRATEGIES: tuple[Strategy, ...] = ("context", "shared", "none")

COUNTS = ("translated", "absorbed", "resynchronised", "skipped")
"""Outcomes of translated drafts; see reprise.engine.speculative.translation.TranslationCounts."""

COLUMNS = [
    Column("draft_model", "draft model", is_key=True), Column("strategy", "strategy", is_key=True),
    Column("workload", "workload", is_key=True), Column("prompt_tokens", "prompt", is_key=True),
    Column(lambda row: "adaptive" if row["is_adaptive"] else str(row["num_draft_tokens"]), "k"),
    Column("acceptance", "ac-\ncepted", "%"), Column("tokens_per_forward", "tok/\nfwd", "2"),
    Column("speedup", "speed\nup", "2"), Column("translated", "trans-\nlated"),
    Column("absorbed", "ab-\nsorbed"), Column("resynchronised", "re-\nsync."), Column("skipped", "skipped"),
    Column("parity", "parity"),
]  # fmt: skip

NOTES = (
    "k: draft length; adaptive: the engine chooses lengths and may leave drafts out.",
    "speedup: of decoding, against interleaved plain runs. parity: of all drafted runs with all plain ones.",
    "translated: drafts expressed in the target's tokens. absorbed: drafts that added nothing new. skipped:",
    "drafts without an exact translation. resynchronised: needed fewer committed tokens in front.",
)

FLAGS = (
    *options.shared(
        model=None, workloads=("edits_polish", "passages_polish", "records_polish", "edits"), prompts=None,
        num_draft_tokens=(2, 4, 6), cases=2, repeats=1, max_tokens=64, seed=1, **options.OUTPUTS,
    ),
    Flag("--draft-model", options.model, "MODEL", None,
         "May be repeated. Default: the bundled draft models.", is_repeated=True),
    *options.of_settings("translation_prefix_tokens"),
    Flag("--no-adaptive", None, None, None, "Leave out the rows with the lengths that the engine chooses."),
    Flag("--strategies", options.names, "A,B", (),
         f"Any of {', '.join(STRATEGIES)}. Default: all but none, or, with the same vocabulary, none."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_names("--strategies", arguments.strategies, STRATEGIES)
    folders = dict.fromkeys(arguments.draft_model or BUNDLED_DRAFTS)
    pairs = pairs_of(arguments.model or BUNDLED_MODEL, folders, arguments.strategies)
    rows: list[Row] = []
    # The adaptive engine comes first: the document has the costs of its steps.
    for (folder, strategy), is_adaptive in product(
        pairs, (False,) if arguments.no_adaptive else (True, False)
    ):
        lengths = [Settings().num_draft_tokens] if is_adaptive else arguments.num_draft_tokens
        settings = settings_of(
            arguments, draft_model=str(folder), draft_translation=strategy, max_rows=1,
            num_draft_tokens=max(lengths), translation_prefix_tokens=arguments.translation_prefix_tokens,
            # Step costs that another process learned earlier do not predict this run.
            costs_file=None,
        )  # fmt: skip
        arms = {"plain": PLAIN} | {f"{length}": Arm("draft-model", length) for length in lengths}
        stage = f"{folder.name}, {strategy}, {'adaptive' if is_adaptive else 'every draft verified'}: "
        costs = None if is_adaptive else forced_costs(max(lengths))
        made, found = measure(arguments, settings, costs, arms, stage)
        if not rows:
            # The samples are of this pair alone, so they are left out.
            result = made | {"translation": found | {"rows": rows, "samples": []}}
        about = {"draft_model": folder.resolve().name, "strategy": strategy, "is_adaptive": is_adaptive}
        whole = [row for row in found["rows"] if row["turn"] is None]
        rows += [about | row | dict.fromkeys(COUNTS, 0) | row["translation"] for row in whole]
    title = f"Drafts for {result['model']['name']}"
    outputs.report(arguments, result, rows, outputs.Table(COLUMNS, title, [*NOTES, *divergences(rows)]))
    return int(any(row["parity"] == "FAIL" for row in rows))


def pairs_of(
    target: Path, folders: Iterable[Path], requested: Sequence[Strategy]
) -> list[tuple[Path, Strategy]]:
    """Return each draft model's folder with each of its translation strategies.

    requested: the strategies to use; if empty, the default ones.
    """
    vocabularies = {folder: load_tokenizer(folder).fingerprint for folder in (target, *folders)}
    return [
        (folder, strategy)
        for folder in folders
        for strategy in requested
        or (STRATEGIES[2:] if vocabularies[folder] == vocabularies[target] else STRATEGIES[:2])
    ]
