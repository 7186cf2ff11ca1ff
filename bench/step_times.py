"""What steps of this model cost here, by their width: the cost curve of result documents."""

from time import perf_counter

import mlx.core as mx

from reprise.engine.engine import Engine
from reprise.engine.kv_cache.per_row import cache_arrays, make_caches
from reprise.engine.kv_cache.rows import Rows, make_rows
from reprise.engine.speculative.costs.cost_table import WIDTHS, grid_up_to
from reprise.engine.speculative.costs.step_costs import StepCosts

CONTEXT_TOKENS = 16

ROUNDS, LONG_ROUNDS, LONG_S = 5, 2, 0.1
"""Times that each width is measured, and one whose steps take this many seconds; the fastest counts."""

PLAIN_STEPS = 4
"""Plain steps in a measurement of width 1: each is dispatched before the one before it is fetched."""

TOKEN_STRIDE = 7919
"""Distance of consecutive tokens in the vocabulary: a mixture of experts computes more for different ones."""


def time_steps(engine: Engine) -> StepCosts:
    """Time steps of one row, of each width that the engine's drafts may have. The engine must be idle."""
    of_model, settings = engine.first_engine, engine.settings

    def measure() -> StepCosts:
        loaded = of_model.loaded
        sharing = loaded.find_sharing(settings.kv_bits)
        may_draft = loaded.rollback_fault(settings.kv_bits, sharing) is None
        widths = grid_up_to(WIDTHS, settings.num_draft_tokens + 1) if may_draft else [1]
        rows, caches = make_rows(loaded.model, sharing), make_caches(loaded.model, settings.kv_bits)
        size = loaded.info.vocab_size
        loaded.model(mx.array([_tokens(CONTEXT_TOKENS, size)]), cache=caches)
        mx.eval(cache_arrays(caches))
        rows.add(caches, CONTEXT_TOKENS)
        found: dict[tuple[int, int], float] = {}
        for number in range(ROUNDS):
            for width in widths:
                if number < LONG_ROUNDS or found[1, width] < LONG_S:
                    taken_s = _plain_step_s(rows, size) if width == 1 else _wide_step_s(rows, width, size)
                    found[1, width] = min(taken_s, found.get((1, width), taken_s))
        return StepCosts(found, is_learned=False)

    costs: StepCosts = of_model.between_steps(measure)
    return costs


def _tokens(count: int, vocab_size: int) -> list[int]:
    return [(TOKEN_STRIDE * at + 3) % vocab_size for at in range(count)]


def _plain_step_s(rows: Rows, vocab_size: int) -> float:
    fed = mx.array(_tokens(PLAIN_STEPS, vocab_size), mx.int32)
    newest = mx.zeros(1, mx.int32)
    mx.eval(fed, newest)
    start = perf_counter()
    for at in range(PLAIN_STEPS):
        previous = newest
        # A step waits for the token of the one before, but is fed another.
        tokens = mx.where(previous < 0, previous, fed[at])
        newest = mx.argmax(rows.forward(tokens[:, None])[:, -1], axis=-1).astype(mx.int32)
        mx.async_eval(newest)
        previous.tolist()
    newest.tolist()
    return (perf_counter() - start) / PLAIN_STEPS


def _wide_step_s(rows: Rows, width: int, vocab_size: int) -> float:
    held, start = rows.lengths[0], perf_counter()
    mx.argmax(rows.forward_ragged([_tokens(width, vocab_size)]), axis=-1).tolist()
    rows.roll_back(0, held + 1)
    return perf_counter() - start
