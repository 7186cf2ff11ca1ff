"""Try one architecture in this process."""

from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO

import mlx.core as mx

from bench.architectures.tiny_models import make_model, tiny_config
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
