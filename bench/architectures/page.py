"""Try one architecture in this process, and write docs/architectures.md from what was found."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import MODEL_REMAPPING

from bench.architectures.tiny_models import make_model, tiny_config
from engine.kv_cache import probes
from engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from engine.kv_cache.rows import Sharing
from engine.speculative.costs.exact_widths import find_exact_shapes

WIDTHS = [2, 3, 4, 5, 8, 16, 32]
NUM_ROWS, KV_BITS, CONTEXT_TOKENS = 3, 8, 512


@dataclass(frozen=True)
class Findings:
    """What an architecture gets. A fault is a sentence, or None if there is none.

    build: why it was not tried; then nothing else was found.
    batch, groups: why rows cannot share a forward pass, and why rows of similar length cannot share buffers.
    by_layer: whether, with several such groups, whole attention layers run once per group.
    exact, exact_together: the WIDTHS whose logits equal those of width 1 byte for byte, for one row and for
        NUM_ROWS that share a forward pass. None: nothing is drafted with --exact.
    kv_bits: why keys and values cannot be quantized.
    kv_bits_batch: why rows cannot share a forward pass when they are.
    """

    build: str | None = None
    batch: str | None = None
    groups: str | None = None
    by_layer: bool = False
    drafts: str | None = None
    exact: list[int] | None = None
    exact_together: list[int] | None = None
    prefix: str | None = None
    kv_bits: str | None = None
    kv_bits_batch: str | None = None


def try_architecture(name: str) -> Findings:
    """Build a tiny model of an architecture and find what it gets here."""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            model = make_model(tiny_config(name))
            caches = make_caches(model)
            logits = model(mx.array([[1, 2, 3]]), cache=caches)
            mx.eval(logits)
    # Foreign code; a module whose requirements are not installed may end the process.
    except (Exception, SystemExit) as fault:  # noqa: BLE001
        return Findings(build=printed.getvalue().strip() or str(fault))
    sharing, batch = probes.find_sharing(model), probes.batch_fault(model)
    groups = None
    if sharing < Sharing.LAYERS:
        groups = batch or probes.batch_fault(model, None, probes.SHORT_LIMIT, by_layer=True)
    drafts, kv_bits = probes.rollback_fault(model, None, sharing), probes.kv_bits_fault(model, KV_BITS)
    exact: dict[int, list[int]] = {}
    # Where state is rolled back by feeding tokens again, the engine drafts nothing with --exact.
    if not drafts and not (batch and any(map(is_recurrent, leaves(caches)))):
        nums_rows = [1] if batch else [1, NUM_ROWS]
        shapes = list(product(nums_rows, WIDTHS))
        vocab_size = logits.shape[-1]
        trial = find_exact_shapes(model, sharing, None, vocab_size, shapes, CONTEXT_TOKENS, lambda _: None)
        found = trial.shapes()
        exact = {rows: [width for width in WIDTHS if (rows, width) in found] for rows in nums_rows}
    return Findings(
        batch=batch, groups=groups, by_layer=sharing is Sharing.LAYERS, drafts=drafts, exact=exact.get(1),
        exact_together=exact.get(NUM_ROWS), prefix=probes.prefix_fault(model), kv_bits=kv_bits,
        kv_bits_batch=None if kv_bits else probes.batch_fault(model, KV_BITS),
    )  # fmt: skip


PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REASONS: dict[str, str] = _TEXTS["reasons"]

Why = Callable[[str, str], str]
"""Returns a verdict with the number of its reason, which is given as a sentence."""


def write_page(found: Mapping[str, Findings]) -> str:
    """Return the page. found: by architecture."""
    numbers: dict[str, int] = {}

    def why(verdict: str, sentence: str) -> str:
        return f"{verdict} ({numbers.setdefault(sentence, len(numbers) + 1)})"

    rows = [f"| {name} | {' | '.join(_cells(one, why))} |" for name, one in sorted(found.items())]
    tried = [one for one in found.values() if not one.build]
    introduction = _TEXTS["introduction"].format(
        total=len(found), mlx_lm=version("mlx-lm"), mlx=version("mlx"), num_tried=len(tried),
        num_exact=sum(one.exact == WIDTHS and one.exact_together in (None, WIDTHS) for one in tried),
        num_batched=sum(not one.batch for one in tried), num_drafted=sum(not one.drafts for one in tried),
        num_prefix=sum(not one.prefix for one in tried), num_kv_bits=sum(not one.kv_bits for one in tried),
        num_rows=NUM_ROWS, widths=_list(WIDTHS),
    )  # fmt: skip
    numbered = [f"{number}. {sentence}" for sentence, number in numbers.items()]
    others = ", ".join(f"`{given}` as {name}" for given, name in sorted(MODEL_REMAPPING.items()))
    names = f"mlx-lm loads some model types as another architecture: {others}.\n"
    parts = [introduction + "\n".join(rows), "\n## Reasons\n", *numbered, "\n## Other names\n", names]
    return "\n".join(parts)


def _cells(found: Findings, why: Why) -> list[str]:
    if found.build:
        return [why("not tried", _sentence(found.build)), *["-"] * 5]

    def verdict(fault: str | None, word: str = "no") -> str:
        return why(word, _sentence(fault)) if fault else "yes"

    batch = verdict(found.batch)
    if not found.batch and found.groups:
        batch = why("one group", _REASONS["one_group"])
    elif not found.batch and found.by_layer:
        batch = why("yes", _REASONS["by_layer"])
    cells = [batch, verdict(found.drafts)]
    if found.exact is None and not found.drafts:
        cells += [why("none", _REASONS["no_exact"]), "-"]
    else:
        cells += [_widths(found.exact, why), _widths(found.exact_together, why)]
    cells.append(verdict(found.prefix))
    if found.kv_bits_batch:
        return [*cells, "alone" if found.batch else verdict(found.kv_bits_batch, "alone")]
    return [*cells, verdict(found.kv_bits)]


def _widths(found: list[int] | None, why: Why) -> str:
    if found is None or found == WIDTHS:
        return "-" if found is None else "all"
    return why(_list(found) or "none", _REASONS["wide_differ"] if found else _REASONS["one_differs"])


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _sentence(fault: str) -> str:
    kind = next((word for word in fault.replace(",", "").split() if word.endswith("Cache")), "cache")
    whole = fault.splitlines()[0]
    known = (one.format(fault=whole, kind=kind) for part, one in _TEXTS["sentences"].items() if part in fault)
    return next(known, f"It fails: {whole}.")
