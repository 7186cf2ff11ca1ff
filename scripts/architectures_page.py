"""Try every architecture of mlx-lm and write docs/architectures.md.

    .venv/bin/python scripts/architectures_page.py [NAME]

With a name, try only this architecture, in this process, and print its verdicts.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from itertools import product
from pathlib import Path

import mlx.core as mx
from jinja2 import Template
from mlx_lm.utils import MODEL_REMAPPING

from reprise.engine.kv_cache import probes
from reprise.engine.kv_cache.exact_widths import Tried, find_exact_shapes
from reprise.engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from reprise.engine.kv_cache.rows import Sharing

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.tiny_models import architectures, make_model, tiny_config  # noqa: E402

PAGE = ROOT / "docs" / "architectures.md"
TEMPLATE = Path(__file__).with_suffix(".md.jinja")
WIDTHS = [2, 3, 4, 5, 8, 16, 32]
NUM_ROWS, KV_BITS, CONTEXT_TOKENS, TIMEOUT_S = 3, 8, 512, 120
_TRY = [__file__]

# By a part of the fault: the first that fits. {fault}: all of it. {kind}: the cache in it.
REASONS = {
    "No Metal back-end": "It needs kernels that only Metal has.",
    "pip install": "It needs a Python package that mlx-lm does not install: `{fault}`.",
    "how a layer computes its state": "It has a recurrence that Reprise cannot replay.",
    "Only length-1 arrays": "It takes one position for all rows.",
    "concatenation axis": "It keeps its latest tokens in a cache of its own.",
    "give other logits when rows share them": "Rows that share a forward pass get other logits than alone.",
    "which rows cannot share": "It keeps a {kind}, which rows cannot share.",
    "which cannot be rolled back": "It keeps a {kind}, which cannot be rolled back.",
    "which cannot be split": "It keeps a {kind}, which cannot be split and rebuilt.",
    "no plain keys": "None of its layers keeps only keys and values, and all of them.",
    "attention sinks": "mlx-lm's quantized attention has no sinks.",
    "tuple": "Its attention takes no quantized keys and values.",
}
ONE_GROUP = "one group: Its attention does not take keys and values of several groups of rows."
BY_LAYER = "yes: Its attention layers run once for each group of rows, which reads their weights that often."
REFED = "none: State is rolled back by feeding tokens again, so nothing is drafted with `--exact`."
ONE_DIFFERS = "none: mlx-lm computes one token by other formulas than several, which round otherwise."
MANY_DIFFER = "mlx-lm computes many tokens by other formulas than few, which round otherwise."

COLUMNS = ("batch", "drafts", "exact", "exact_together", "prefix", "kv_bits")
Verdicts = Mapping[str, str]
"""What an architecture gets, by column: "VERDICT" or "VERDICT: REASON"; the page says what these mean."""


def try_architecture(name: str) -> Verdicts:
    """Build a tiny model of an architecture; return a verdict for each column of the page."""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            model = make_model(tiny_config(name))
            caches = make_caches(model)
            logits = model(mx.array([[1, 2, 3]]), cache=caches)
            mx.eval(logits)
    # Foreign code; a module whose requirements are not installed may end the process.
    except (Exception, SystemExit) as fault:  # noqa: BLE001
        return {"batch": f"not tried: {explain(printed.getvalue().strip() or str(fault))}"}
    sharing, batch_fault = probes.find_sharing(model), probes.batch_fault(model)
    drafts_fault = probes.rollback_fault(model, None, sharing)
    kv_bits = _verdict(probes.kv_bits_fault(model, KV_BITS))
    shared = {Sharing.BUFFERS: ONE_GROUP, Sharing.LAYERS: BY_LAYER, Sharing.GROUPS: "yes"}
    found = {
        "batch": shared.get(sharing, _verdict(batch_fault)), "drafts": _verdict(drafts_fault),
        "prefix": _verdict(probes.prefix_fault(model)),
        "kv_bits": "alone" if kv_bits == "yes" and probes.batch_fault(model, KV_BITS) else kv_bits,
    }  # fmt: skip
    if not drafts_fault and batch_fault and any(map(is_recurrent, leaves(caches))):
        found["exact"] = REFED
    elif not drafts_fault:
        tried = {"exact": 1} if batch_fault else {"exact": 1, "exact_together": NUM_ROWS}
        shapes, size = product(tried.values(), WIDTHS), logits.shape[-1]
        trial = find_exact_shapes(Tried(model, sharing, None, size, CONTEXT_TOKENS), shapes, lambda _: None)
        for column, rows in tried.items():
            found[column] = _widths([width for width in WIDTHS if (rows, width) in trial.shapes()])
    return found


def _verdict(fault: str | None) -> str:
    return f"no: {explain(fault)}" if fault else "yes"


def _widths(exact: Sequence[int]) -> str:
    some = f"{', '.join(map(str, exact))}: {MANY_DIFFER}" if exact else ONE_DIFFERS
    return "all" if exact == WIDTHS else some


def explain(fault: str) -> str:
    """Return a fault as a sentence for the page."""
    kind = next((word for word in fault.replace(",", "").split() if word.endswith("Cache")), "cache")
    whole = fault.splitlines()[0]
    known = (one.format(fault=whole, kind=kind) for part, one in REASONS.items() if part in fault)
    return next(known, f"It fails: {whole}.")


def write_page(found: Mapping[str, Verdicts]) -> str:
    """Return the text of the page. found: the verdicts by architecture."""
    numbers: dict[str, int] = {}

    def cell(text: str) -> str:
        verdict, _, reason = text.partition(": ")
        return f"{verdict} ({numbers.setdefault(reason, len(numbers) + 1)})" if reason else verdict

    def count(**has: str | tuple[str, ...]) -> int:
        return sum(all(one.get(name, "-").startswith(has[name]) for name in has) for one in found.values())

    rows = {name: [cell(one.get(column, "-")) for column in COLUMNS] for name, one in sorted(found.items())}
    template = Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return str(template.render(
        rows=rows, reasons=numbers, count=count, others=sorted(MODEL_REMAPPING.items()), widths=WIDTHS,
        num_rows=NUM_ROWS, mlx_lm=version("mlx-lm"), mlx=version("mlx"),
    ))  # fmt: skip


def try_in_child(name: str) -> Verdicts:
    """Try an architecture in a process of its own, since trying it may crash or hang."""
    command = [sys.executable, *_TRY, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired:
        return {"batch": f"not tried: Trying it takes more than {TIMEOUT_S} s."}
    except subprocess.CalledProcessError:
        return {"batch": "not tried: It crashes the process that tries it."}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Try the architecture that the command line names, or try all and write the page."""
    if len(sys.argv) > 1:
        print(json.dumps(try_architecture(sys.argv[1])))
        return
    found = {}
    for name in architectures():
        print(name, file=sys.stderr)
        found[name] = try_in_child(name)
    PAGE.write_text(write_page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
