"""Result documents with every section that the page draws. All figures are invented."""

import random
from typing import Any

WORKLOADS = {"edits_long": 0.93, "json_rag": 0.82, "agent": 0.74, "passage": 0.6, "free": 0.12, "trap": 0.03}
TYPES = {"auto": 1.0, "suffix": 0.97, "ngram-simple": 0.84, "ngram-mod": 0.78, "draft-model": 0.7}
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
STAIRS = {1: 1.0, 2: 1.02, 3: 1.13, 4: 1.43, 5: 1.75, 6: 2.1, 8: 2.9, 10: 4.4}
TEXT = (
    "def total(lamps):\n    # The price of the lamps that are lit.\n"
    "    kept = [lamp for lamp in lamps if lamp.is_lit]\n"
    "    for lamp in kept:\n        lamp.seen = True\n    return sum(lamp.price for lamp in kept)\n"
)


def made_up(
    cpu: str = "A machine that does not exist", date: str = "2026-01-02T03:04:05+00:00", seed: int = 1
) -> dict[str, Any]:
    """Make a document with all sections; cpu, date and seed distinguish it from others."""
    rng = random.Random(seed)
    return {
        "reprise": "0.0.0",
        "date": date,
        "machine": {
            "cpu": cpu, "cores": 12, "memory_bytes": 24 * 2**30, "system": "an invented system",
            "python": "3.12", "mlx": "0.0.0", "mlx_lm": "0.0.0", "load_at_start": 0.1,
        },
        "model": {"name": "made-up-model", "num_parameters": 28_000_000, "dtype": "bfloat16"},
        "command": "reprise bench made-up --json made-up.json",
        "cost_curve": [
            {"width": width, "seconds": 0.008 * STAIRS.get(width, 4.5) * (1 + 0.05 * seed * (width > 1))}
            for width in WIDTHS
        ],
        "decode": {"workloads_version": 3, "rows": _rows(rng), "samples": _samples(rng)},
        "sweep": _sweep(rng),
        "serve": {"levels": _levels(rng)},
        "replay": {"rows": _replays(rng)},
    }  # fmt: skip


def _row(rng: random.Random, workload: str, kind: str, turn: int | None, lift: float = 0.0) -> dict[str, Any]:
    likeness = min(0.98, WORKLOADS[workload] * TYPES[kind] * rng.uniform(0.96, 1.04) + lift)
    speedup = 0.985 + 1.9 * likeness**2 * rng.uniform(0.95, 1.05) - 0.02 * (likeness < 0.1)
    plain = 118 * rng.uniform(0.98, 1.02)
    return {
        "workload": workload, "draft_type": kind, "num_draft_tokens": 16, "prompt_tokens": 600, "turn": turn,
        "tokens": 512, "decode_tps": plain * speedup, "plain_tps": plain, "prefill_tps": 2100.0,
        "ttft_ms": 280 * rng.uniform(0.9, 1.1), "speedup": speedup, "acceptance": likeness,
        "acceptance_by_position": [likeness ** (1 + 0.12 * at) for at in range(12)],
        "tokens_per_forward": 1 + 3.4 * likeness**2, "drafted_share": 0.9 * likeness,
        "drafter_us_per_token": 4 + 5 * rng.random(), "parity": "PASS", "first_divergence": None,
        "speedup_low": 0.97 * speedup, "speedup_high": 1.02 * speedup,
        "parity_pairs": 9, "parity_differing": 0,
        "energy_j_per_token": None,
    }  # fmt: skip


def _rows(rng: random.Random) -> list[dict[str, Any]]:
    rows = [_row(rng, workload, kind, None) for workload in WORKLOADS for kind in TYPES]
    rows += [
        _row(rng, workload, kind, turn, 0.07 * turn - 0.25)
        for workload in ("edits_long", "agent")
        for kind in TYPES
        for turn in (1, 2, 3, 4)
    ]
    rows[-1]["speedup"] = None
    rows[len(TYPES) * 4 + 4].update(parity="FAIL", first_divergence={"token": 117, "margin": 0.0021})
    return rows


def _samples(rng: random.Random) -> list[dict[str, Any]]:
    samples = []
    for workload, likeness in WORKLOADS.items():
        for kind in ("auto", "suffix"):
            tokens, source = [], "model"
            for word in (TEXT * 2).replace(" ", "\0 ").split("\0"):
                if rng.random() < 0.3:
                    drafter = (
                        rng.choice(("suffix", "ngram-simple", "ngram-mod")) if kind == "auto" else "suffix"
                    )
                    source = drafter if rng.random() < likeness else "model"
                tokens.append([word, source])
            samples.append(
                {
                    "workload": workload,
                    "draft_type": kind,
                    "prompt": f"Change this:\n{TEXT}",
                    "tokens": tokens,
                }
            )
    return samples


def _sweep(rng: random.Random) -> dict[str, Any]:
    sizes = [
        {
            "entries": 2**power, "requests": requests, "known": 0.9 / (1 + requests * 20 / 2**power),
            "occupancy": min(0.98, 90 * requests / 2**power), "speedup": 1.4,
            "overwritten": min(1, 50 * requests / 2**power),
            "acceptance": 0.78 / (1 + requests * 16 / 2**power),
            "tokens_per_forward": 1 + 1.9 / (1 + requests * 16 / 2**power),
        }
        for requests in (100, 1000)
        for power in range(12, 23)
    ]  # fmt: skip
    plain = 118.0
    points, fits = [], []
    for length in (2, 3, 4, 6):
        a, b = 108 - 9 * length, 40 + 21 * length
        for kind in ("controlled", "draft-model"):
            for share in (rng.random() for _ in range(20)):
                speedup = (a + b * share + rng.gauss(0, 5)) / plain
                points.append({
                    "num_draft_tokens": length, "drafts": kind, "acceptance": share, "plain_tps": plain,
                    "decode_tps": plain * speedup, "speedup": speedup, "workload": "agent", "parity": "PASS",
                })  # fmt: skip
        even = (plain - a) / b
        fits.append({
            "num_draft_tokens": length, "a": a, "b": b, "break_even": even, "low": even - 0.04,
            "high": even + 0.05, "n": 20, "step_cost": 1.1,
        })  # fmt: skip
    return {
        "table_sizes": sizes,
        "ngram_sizes": [row | {"ngram_size": 4 + 2 * at} for at, row in enumerate(sizes[:6])],
        "points": points, "fits": fits,
        "draft_model": [{**row, "break_even": row["break_even"] + 0.1} for row in fits],
    }  # fmt: skip


def _levels(rng: random.Random) -> list[dict[str, Any]]:
    servers = {"Reprise": 1.9, "Reprise, plain": 1.0, "mlx_lm.generate": 0.97, "mlx_lm.server": 1.2}
    return [
        {
            "name": server, "workload": workload, "streams": streams, "ttft_ms": 280.0 * streams,
            "parity": None, "error": None, "speedup": (1 + (rate - 1) * likeness) / (1 + 0.9 * likeness),
            "tokens_per_s": 118 * (1 + (rate - 1) * likeness) * rng.uniform(0.98, 1.02),
        }
        for streams in (1, 8)
        for workload, likeness in WORKLOADS.items()
        for server, rate in servers.items()
    ]  # fmt: skip


def _replays(rng: random.Random) -> list[dict[str, Any]]:
    rules = {
        "auto": 0.9,
        "mod-24": 0.7,
        "twelve-gram": 0.62,
        "longest-5": 0.5,
        "recent-3": 0.4,
        "recent-2": 0.34,
    }
    return [
        {
            "drafter": rule, "rule": f"{rule}, in words", "workload": workload, "pairs": 1200,
            "tokens": 300_000, "tokens_per_forward": 1 + 4 * rate * lift, "coverage": rate * lift,
            "acceptance_by_position": [(rate * lift) ** (1 + at / 6) for at in range(12)],
            "drafter_us_per_token": 2 + 6 * rng.random(),
            "curve": curve, "speedup": base + (rate * lift) ** power, "slowest": base - 0.1,
        }
        for curve, base, power in (("an invented chip", 0.9, 2), ("another one", 0.95, 1))
        for workload, lift in (("edits_long", 1.05), ("free", 0.5), ("all", 0.9))
        for rule, rate in rules.items()
    ]  # fmt: skip
