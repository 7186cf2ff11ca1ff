"""Result documents with every section that the page draws. All figures are invented."""

import math
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
        "decode": {"workloads_version": 2, "rows": _rows(rng), "samples": _samples(rng)},
        "sweep": _sweep(),
        "economics": _economics(rng),
        "translation": _translation(rng),
        "serve": {"levels": _levels(rng)},
        "replay": {"rows": _replays(rng)},
    }  # fmt: skip


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
        "speedup_low": 0.97 * speedup, "speedup_high": 1.02 * speedup,
        "parity_pairs": 9, "parity_differing": 0,
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


def _sweep() -> dict[str, Any]:
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
            "entries": 2**power, "requests": requests, "known": 0.9 / (1 + requests * 20 / 2**power),
            "occupancy": min(0.98, 90 * requests / 2**power), "collisions": round(4e5 * requests / 2**power),
            "overwritten": min(1, 50 * requests / 2**power), "speedup": 1.4,
            "acceptance": 0.78 / (1 + requests * 16 / 2**power),
            "tokens_per_forward": 1 + 1.9 / (1 + requests * 16 / 2**power),
        }
        for requests in (100, 1000)
        for power in range(12, 23)
    ]  # fmt: skip
    gate = [
        {
            "threshold": threshold, "gate": mode, "workload": workload, "acceptance": likeness,
            "speedup": 1 + (likeness - 0.25) * math.exp(-((at - 3) ** 2) / 12), "repetitive": 1 / (at + 1),
        }
        for at, threshold in enumerate((0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5))
        for mode in ("auto", "on")
        for workload, likeness in WORKLOADS.items()
    ]  # fmt: skip
    warm = [
        {
            "pair": pair, "memory": memory, "turn": turn, "workload": "edits_long", "draft_type": kind,
            "speedup": 1.3 + 0.12 * (turn or 3) + lift * (memory == "warm"), "acceptance": 0.6,
            "tokens_per_forward": 1.5 + 0.2 * (turn or 3) + lift * (memory == "warm"),
        }
        for pair, lift in (("same model", 0.32), ("other model", 0.14))
        for memory in ("cold", "warm")
        for turn in (None, 1, 2, 3, 4, 5)
        for kind in ("ngram-mod", "auto")
    ]  # fmt: skip
    return {
        "grid": grid,
        "measured": [row | {"speedup": row["speedup"] * 0.95, "parity": "PASS"} for row in grid[:6]],
        "table_sizes": sizes,
        "ngram_sizes": [row | {"ngram_size": 4 + 2 * at} for at, row in enumerate(sizes[:6])],
        "gate": gate,
        "warm": warm,
    }


def _economics(rng: random.Random) -> dict[str, Any]:
    plain = 118.0
    points, fits = [], []
    for length in (2, 3, 4, 6):
        a, b = 108 - 9 * length, 40 + 21 * length
        for kind in ("controlled", "suffix"):
            for share in (rng.random() for _ in range(20)):
                speedup = (a + b * share + rng.gauss(0, 5)) / plain
                points.append({
                    "num_draft_tokens": length, "draft_type": kind, "is_gated": False, "acceptance": share,
                    "plain_tps": plain, "decode_tps": plain * speedup, "speedup": speedup,
                    "workload": "agent",
                })  # fmt: skip
        even = (plain - a) / b
        fits.append({
            "num_draft_tokens": length, "a": a, "b": b, "break_even": even, "low": even - 0.04,
            "high": even + 0.05, "n": 20, "r_squared": 0.93, "step_cost": 1.1,
        })  # fmt: skip
    predicted = [
        {
            "predicted": 1 + at / 9,
            "measured": 1 + at / 9 + rng.gauss(0, 0.05),
            "by": by,
            "draft_type": "suffix",
        }
        for by in ("cost curve", "fit")
        for at in range(12)
    ]
    choices = [
        {
            "workload": workload, "draft_type": "suffix", "num_draft_tokens": length, "n": 8,
            "is_gated": is_gated,
            "speedup": 0.9 + likeness * length / 8, "low": 0.8 + likeness * length / 8,
            "high": 1.05 + likeness * length / 8, "acceptance": likeness, "pays": likeness > 0.4,
        }
        for workload, likeness in WORKLOADS.items()
        for length in (2, 4, 8)
        for is_gated in (False, True)
    ]  # fmt: skip
    return {
        "plain_tps": plain, "intervals": "Made up, like all here.", "fits": fits, "points": points,
        "beta": {"r": 0.33, "beta": 0.011, "low": 0.009, "high": 0.013},
        "buckets": [
            {
                "label": f"{20 * at} to {20 * at + 20} %", "num_draft_tokens": length, "n": 12,
                "speedup": 0.75 + 0.05 * length * at, "lowest": 0.7, "highest": 0.8 + 0.05 * length * at,
            }
            for at in range(5)
            for length in (2, 4)
        ],
        "choices": choices, "predicted": predicted,
        "energy": {"measured": "not measured", "reason": "the machine is made up", "rows": []},
        "advice": ["Use suffix drafts of up to 16 tokens: they pay on five of six workloads."],
    }  # fmt: skip


def _translation(rng: random.Random) -> dict[str, Any]:
    quality = {"context": 1.0, "shared": 0.7, "none": 1.0}
    pairs = [("stranger", "context"), ("stranger", "shared"), ("cousin", "none")]
    rows = []
    for draft_model, strategy in pairs:
        for workload, likeness in list(WORKLOADS.items())[:3]:
            for length in (2, 4, 6, None):
                accepted = likeness * quality[strategy] * rng.uniform(0.95, 1.0)
                speedup = 0.7 + 0.6 * accepted
                rows.append({
                    "draft_model": draft_model, "strategy": strategy, "is_adaptive": length is None,
                    "workload": workload, "prompt_tokens": None, "num_draft_tokens": length or 31,
                    "acceptance": accepted, "tokens_per_forward": 1 + accepted * (length or 3),
                    "acceptance_by_position": [accepted, 0.9 * accepted], "drafted_per_draft": length or 2.7,
                    "plain_tps": 118.0, "decode_tps": 118 * speedup, "speedup": speedup,
                    "speedup_low": 0.97 * speedup, "speedup_high": 1.02 * speedup,
                    "translated": 120, "absorbed": 3, "resynchronised": 9,
                    "skipped": 1,
                    "parity": "PASS", "parity_pairs": 4, "parity_differing": 0, "first_divergence": None,
                    "by_source": {"draft-model": [240, round(240 * accepted)]},
                })  # fmt: skip
    return {"rows": rows}


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
