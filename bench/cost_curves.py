"""Cost curves: a step's cost by width, relative to a plain step; measured here or published."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reprise.bench import document
from reprise.engine.speculative.costs.kept_costs import METAL_QUANTISED


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of a step by its width, as (width, cost) at widths that rise from 1, where the cost is 1.

    kind: "measured" by Reprise, or "published" by others. source: who measured the costs, and how.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    machine: str = ""
    kind: str = "measured"
    source: str = ""

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width, interpolated linearly between the points.

        Beyond the last point the cost follows the overall slope, which is a guess. The last segment's slope
        would make further width free, as a staircase ends flat.
        """
        last_width, last_cost = self.points[-1]
        if width > last_width:
            return last_cost + (width - last_width) * max(0.0, (last_cost - 1.0) / (last_width - 1))
        widths, costs = zip(*self.points, strict=True)
        return float(np.interp(width, widths, costs))


M4_PRO = Curve(
    "M4 Pro 4-bit", METAL_QUANTISED, "Apple M4 Pro, 4-bit weights", "published",
    "measured by others on Metal and quoted as published; not measured here",
)  # fmt: skip
CPU_BF16 = Curve(
    "CPU bf16", ((1, 1.0), (2, 1.3), (4, 1.75), (8, 2.8)),
    "Linux, x86_64, MLX's CPU build with its reference BLAS, one core", "measured",
    "measured with a Llama of 28 million parameters in bfloat16, up to width 8",
)  # fmt: skip
FLAT = Curve("flat", ((1, 1.0), (32, 1.0)))
"""A hypothetical curve on which width is free, so speedups are tokens per forward pass."""


def built_in() -> dict[str, Curve]:
    """Return the curves that come with Reprise, by name."""
    return {"apple-m4-pro-4bit": M4_PRO, "cpu-bf16": CPU_BF16}


def find_curve(name: str) -> Curve:
    """Return a built-in curve by its name, or the curve in the result document at a path.

    Raises OSError or ValueError if the document cannot be read or has no curve.
    """
    if name in built_in():
        return built_in()[name]
    found = document.read(Path(name))
    costs, machine = found.get("cost_curve"), found["machine"]["cpu"]
    if not costs:
        raise ValueError(f"{name} has no step costs: it was written without an engine")
    points = tuple((one["width"], one["seconds"] / costs[0]["seconds"]) for one in costs)
    source = f"{found['command']}, {found['date']}"
    return Curve(f"{found['model']['name']} on {machine}", points, machine, source=source)
