"""Result documents with every section that the page draws. All figures in them are made up."""

import math
import random
from typing import Any

WORKLOADS = {"edits_long": 0.93, "json_rag": 0.82, "agent": 0.74, "passage": 0.6, "free": 0.12, "trap": 0.03}
TYPES = {"auto": 1.0, "suffix": 0.97, "ngram-simple": 0.84, "ngram-mod": 0.78, "draft-model": 0.7}
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
STAIRS = {1: 1.0, 2: 1.02, 3: 1.13, 4: 1.43, 5: 1.75, 6: 2.1, 8: 2.9, 10: 4.4}
TEXT = (
    'def total(lamps):\n    """Sum the prices of the lamps that are lit."""\n    kept = [lamp for lamp in lamps '
    "if lamp.is_lit]\n    for lamp in kept:\n        lamp.seen = True\n    return sum(lamp.price for lamp in kept)\n"
)


def made_up(
    cpu: str = "A machine that does not exist", date: str = "2026-01-02T03:04:05+00:00", seed: int = 1
) -> dict[str, Any]:
    """A document with all sections; cpu, date and seed tell it from others."""
    rng = random.Random(seed)
    return {
        "reprise": "0.0.0",
        "date": date,
        "machine": {
            "cpu": cpu, "cores": 12, "memory_bytes": 24 * 2**30, "system": "an invented system",
            "python": "3.12", "mlx": "0.0.0", "mlx_lm": "0.0.0", "load_at_start": 0.1,
        },
        "model": {"name": "made-up-model", "num_parameters": 28_000_000, "dtype": "bfloat16", "weight_bytes": 56_000_000},
        "command": "reprise bench made-up --json made-up.json",
        "cost_curve": [{"width": width, "seconds": 0.008 * _cost(width) * (1 + 0.1 * seed)} for width in WIDTHS],
        "decode": {"workloads_version": 2, "rows": _rows(rng), "samples": _samples(rng)},
        "sweep": _sweep(rng),
        "economics": _economics(rng),
        "peers": {"rows": _peers(rng)},
        "replay": {"rows": _replays(rng)},
    }  # fmt: skip


def _cost(width: int) -> float:
    return STAIRS.get(width, 4.5 if width <= 32 else 6.0)


def _row(rng: random.Random, workload: str, kind: str, turn: int | None, lift: float = 0.0) -> dict[str, Any]:
    likeness = min(0.98, WORKLOADS[workload] * TYPES[kind] * rng.uniform(0.96, 1.04) + lift)
    speedup = 0.985 + 1.9 * likeness**2 * rng.uniform(0.95, 1.05) - 0.02 * (likeness < 0.1)
    plain = 118 * rng.uniform(0.98, 1.02)
    drafted = round(400 * likeness)
    return {
        "workload": workload, "draft_type": kind, "num_draft_tokens": 16, "prompt_tokens": 600, "turn": turn,
        "streams": 1, "tokens": 512, "decode_tps": plain * speedup, "plain_tps": plain, "prefill_tps": 2100.0,
        "ttft_ms": 280 * rng.uniform(0.9, 1.1), "speedup": speedup, "acceptance": likeness,
        "acceptance_by_position": [likeness ** (1 + 0.12 * at) for at in range(12)],
        "tokens_per_forward": 1 + 3.4 * likeness**2, "drafted_share": 0.9 * likeness,
        "drafter_us_per_token": 4 + 5 * rng.random(), "parity": "PASS", "first_divergence": None,
        "best_width_speedup": speedup * 1.08, "of_best_width": 1 / 1.08,
        "by_source": {kind if kind != "auto" else "suffix": [drafted, round(drafted * likeness)]},
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
    grid = [
        {
            "draft_type": kind, "num_draft_tokens": length, "ngram_size": size, "workload": workload,
            "speedup": 1 + (WORKLOADS[workload] - 0.3) * math.log2(length) * 0.25 * (1 - abs(size - 6) / 40),
            "tokens_per_forward": 1 + 2 * WORKLOADS[workload], "acceptance": WORKLOADS[workload],
        }
        for kind in ("ngram-simple", "ngram-mod")
        for length in (2, 4, 8, 16, 31)
        for size in (2, 3, 5, 8, 12, 16)
        for workload in ("edits_long", "json_rag", "free")
    ]  # fmt: skip
    sizes = [
        {
            "entries": 2**power, "occupancy": min(0.98, 9000 / 2**power), "collisions": round(4e7 / 2**power),
            "acceptance": 0.78 / (1 + 2 ** (14 - power)), "tokens_per_forward": 1 + 1.9 / (1 + 2 ** (14 - power)),
        }
        for power in range(12, 23)
    ]  # fmt: skip
    gate = [
        {"threshold": step / 20, "workload": workload, "speedup": 1 + (likeness - 0.25) * math.exp(-((step / 20 - 0.4) ** 2) * 4)}
        for workload, likeness in WORKLOADS.items()
        for step in range(0, 20, 2)
    ]  # fmt: skip
    warm = [
        {
            "pair": pair, "memory": memory, "turn": turn, "speedup": 1.3 + 0.12 * turn + lift * (memory == "warm"),
            "tokens_per_forward": 1.5 + 0.2 * turn + lift * (memory == "warm"), "acceptance": 0.5 + 0.05 * turn,
        }
        for pair, lift in (("same model", 0.32), ("other model", 0.14))
        for memory in ("cold", "warm")
        for turn in (1, 2, 3, 4, 5)
    ]  # fmt: skip
    return {"grid": grid, "table_sizes": sizes, "gate": gate, "warm": warm}


def _economics(rng: random.Random) -> dict[str, Any]:
    points, fits = [], []
    for length in (2, 3, 4, 6):
        a, b = 108 - 9 * length, 40 + 21 * length
        alphas = [rng.random() for _ in range(30)]
        points += [
            {
                "num_draft_tokens": length,
                "acceptance": x,
                "tps": a + b * x + rng.gauss(0, 5),
                "workload": "edits_long",
            }
            for x in alphas
        ]
        even = (118 - a) / b
        fits.append(
            {
                "num_draft_tokens": length,
                "a": a,
                "b": b,
                "break_even": even,
                "low": even - 0.04,
                "high": even + 0.05,
                "n": 30,
            }
        )
    return {
        "plain_tps": 118.0, "fits": fits, "points": points,
        "beta": {"r": 0.25, "beta": 0.06, "low": 0.05, "high": 0.07},
        "buckets": [{"low": at / 5, "high": (at + 1) / 5, "speedup": 0.75 + 0.25 * at, "n": 12} for at in range(5)],
        "predicted": [{"predicted": 1 + at / 9, "measured": 1 + at / 9 + rng.gauss(0, 0.05), "workload": "agent"} for at in range(12)],
        "energy": {"source": "not measured"},
        "advice": ["Use suffix drafts of up to 16 tokens: they pay on five of six workloads.", "Made up, like all here."],
    }  # fmt: skip


def _peers(rng: random.Random) -> list[dict[str, Any]]:
    servers = {"Reprise": 1.9, "Reprise, plain": 1.0, "mlx_lm generate": 0.97, "mlx_lm speculative": 1.2}
    return [
        {"server": server, "workload": workload, "tokens_per_s": 118 * (1 + (rate - 1) * likeness) * rng.uniform(0.98, 1.02), "ttft_ms": 280.0}
        for workload, likeness in WORKLOADS.items()
        for server, rate in servers.items()
    ]  # fmt: skip


def _replays(rng: random.Random) -> list[dict[str, Any]]:
    rules = {
        "suffix with gate": 0.9,
        "ngram-mod at 24": 0.7,
        "12-gram, long drafts": 0.62,
        "longest match of 5": 0.5,
        "n = 3": 0.4,
        "n = 2": 0.34,
    }
    return [
        {
            "drafter": rule, "pairs": 1200, "tokens": 300_000, "tokens_per_forward": 1 + 4 * rate, "coverage": rate,
            "acceptance_by_position": [rate ** (1 + at / 6) for at in range(12)], "drafter_us_per_token": 2 + 6 * rng.random(),
            "speedup": {"an invented chip": 0.9 + 1.8 * rate**2, "another one": 0.95 + 0.9 * rate},
        }
        for rule, rate in rules.items()
    ]  # fmt: skip
