"""Try one architecture in this process, and write docs/architectures.md from what was found."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import MODEL_REMAPPING

from bench.architectures.tiny_models import make_model, tiny_config
from bench.document import describe_machine
from engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from engine.kv_cache.probes import (
    SHORT_LIMIT,
    batch_fault,
    find_sharing,
    kv_bits_fault,
    prefix_fault,
    rollback_fault,
)
from engine.kv_cache.rows import Sharing
from engine.speculative.costs.exact_widths import find_exact_shapes

WIDTHS = [2, 3, 4, 5, 8, 16, 32]
NUM_ROWS = 3
KV_BITS = 8
CONTEXT_TOKENS = 512


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
    sharing = find_sharing(model)
    batch = batch_fault(model)
    groups = (
        None if sharing >= Sharing.LAYERS else batch or batch_fault(model, None, SHORT_LIMIT, by_layer=True)
    )
    drafts = rollback_fault(model, None, sharing)
    kv_bits = kv_bits_fault(model, KV_BITS)
    exact: dict[int, list[int]] = {}
    # Where state is rolled back by feeding tokens again, the engine drafts nothing with --exact.
    if not drafts and not (batch and any(map(is_recurrent, leaves(caches)))):
        shapes = [(rows, width) for rows in ([1] if batch else [1, NUM_ROWS]) for width in WIDTHS]
        vocab_size = logits.shape[-1]
        found = find_exact_shapes(
            model, sharing, None, vocab_size, shapes, CONTEXT_TOKENS, lambda _: None
        ).shapes()
        exact = {rows: [w for w in WIDTHS if (rows, w) in found] for rows, _ in shapes}
    return Findings(
        batch=batch,
        groups=groups,
        by_layer=sharing is Sharing.LAYERS,
        drafts=drafts,
        exact=exact.get(1),
        exact_together=exact.get(NUM_ROWS),
        prefix=prefix_fault(model),
        kv_bits=kv_bits,
        kv_bits_batch=None if kv_bits else batch_fault(model, KV_BITS),
    )


PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

SENTENCES = {
    "No Metal back-end": "It needs kernels that only Metal has.",
    "pip install": "It needs a Python package that mlx-lm does not install: `{fault}`.",
    "how a layer computes its state": "It has a recurrence that Reprise cannot replay.",
    "Only length-1 arrays": "It takes one position for all rows.",
    "concatenation axis": "It keeps its latest tokens in a cache of its own.",
    "give other logits when rows share them": "Rows that share a forward pass get other logits than alone.",
    "leave a trace": "Rejected tokens change what comes after them.",
    "addmm": "Its attention does not take a mask for each row.",
    "which rows cannot share": "It keeps a {kind}, which rows cannot share.",
    "rows cannot share a ": "It keeps a {kind}, which rows cannot share.",
    "which cannot be rolled back": "It keeps a {kind}, which cannot be rolled back.",
    "which cannot be split": "It keeps a {kind}, which cannot be split and rebuilt.",
    "no plain keys": "None of its layers keeps only keys and values, and all of them.",
    "attention sinks": "mlx-lm's quantized attention has no sinks.",
    "ends the process": "It crashes the process that tries it.",
    "tuple": "Its attention takes no quantized keys and values.",
}
"""What the page says, by a part of the message. {fault}: the whole message. {kind}: the cache in it."""

NO_EXACT = "State is rolled back by feeding tokens again, so nothing is drafted with `--exact`."
ONE_GROUP = "Its attention does not take keys and values of several groups of rows."
BY_LAYER = "Its attention layers run once for each group of rows, which reads their weights that often."
ONE_DIFFERS = "mlx-lm computes one token by other formulas than several, which round otherwise."
WIDE_DIFFER = "mlx-lm computes many tokens by other formulas than few, which round otherwise."

_INTRODUCTION = """\
# Architectures

Generated by `python -m bench.architectures`. Do not edit.

What each of the {total} architectures in mlx-lm {mlx_lm} gets here, found by trying a tiny random model of it
on the CPU, with mlx {mlx}. Of multimodal models, this is the text part. At load, Reprise tries the same with
the real model, and the log says what it cannot have.

{num_tried} could be tried. {num_batched} of them share forward passes, {num_drafted} draft, {num_exact} are
exact at every width tried, {num_prefix} use the prefix cache, and {num_kv_bits} take `--kv-bits`.

- **Batch**: whether rows share a forward pass; if not, each row has its own. The answers are the same. Rows
  of similar length share buffers; "one group" means that all do: short rows then take as much as the longest.
- **Drafts**: whether rejected drafts can be rolled back; if not, the model decodes plainly.
- **Exact alone**, **exact in a batch**: at which widths of a step the logits equal those of width 1 byte for
  byte, for one row and for {num_rows} rows that share a forward pass. The widths {widths} were tried,
  in float32. Other hardware gives others: `--exact` finds them at load.
- **Prefix cache**: whether the beginning of an earlier prompt can be used again.
- **`--kv-bits`**: whether keys and values can be quantized to 8 bits; "alone" if rows then have a forward
  pass each.

A number refers to [the reasons](#reasons).

| architecture | batch | drafts | exact alone | exact in a batch | prefix cache | `--kv-bits` |
|---|---|---|---|---|---|---|
"""


Why = Callable[[str, str], str]
"""Returns a verdict with the number of its reason, which is given as a sentence."""


def write_page(found: Mapping[str, Findings]) -> str:
    """Return the page. found: by architecture."""
    numbers: dict[str, int] = {}

    def why(verdict: str, sentence: str) -> str:
        return f"{verdict} ({numbers.setdefault(sentence, len(numbers) + 1)})"

    rows = [f"| {name} | {' | '.join(_cells(one, why))} |" for name, one in sorted(found.items())]
    tried = [one for one in found.values() if not one.build]
    machine = describe_machine()
    introduction = _INTRODUCTION.format(
        total=len(found), mlx_lm=machine["mlx_lm"], mlx=machine["mlx"], num_tried=len(tried),
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

    def verdict(fault: str | None) -> str:
        return "yes" if fault is None else why("no", _sentence(fault))

    batch = verdict(found.batch)
    if not found.batch and (found.groups or found.by_layer):
        batch = why("one group", ONE_GROUP) if found.groups else why("yes", BY_LAYER)
    cells = [batch, verdict(found.drafts)]
    if found.exact is None and not found.drafts:
        cells += [why("none", NO_EXACT), "-"]
    else:
        cells += [_widths(found.exact, why), _widths(found.exact_together, why)]
    cells.append(verdict(found.prefix))
    if not found.kv_bits_batch:
        return [*cells, verdict(found.kv_bits)]
    return [*cells, "alone" if found.batch else why("alone", _sentence(found.kv_bits_batch))]


def _widths(found: list[int] | None, why: Why) -> str:
    if found is None or found == WIDTHS:
        return "-" if found is None else "all"
    return why(_list(found) or "none", WIDE_DIFFER if found else ONE_DIFFERS)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _sentence(fault: str) -> str:
    for part, sentence in SENTENCES.items():
        if part in fault:
            words = fault.replace(",", "").split()
            kind = next((word for word in words if word.endswith("Cache")), "cache")
            return sentence.format(fault=fault.splitlines()[0], kind=kind)
    return f"It fails: {fault.splitlines()[0]}."
