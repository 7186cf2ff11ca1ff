"""Cost curves: the cost of a step by its width, relative to a plain step; measured here or published.

    {"name": "M4 Pro 4-bit", "machine": "...", "kind": "measured" | "published", "source": "...",
     "points": [[1, 1.0], [2, 0.99], ...]}

A file of this form is a curve; so is a result document with an engine's step costs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from bench.errors import ArgumentsError, reason

Point = tuple[int, Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]]
"""Width and cost, in any unit."""


def _as_pair(point: Any) -> Any:
    """Return a point as a pair; result documents have it as an object."""
    return (point.get("width"), point.get("seconds")) if isinstance(point, dict) else point


def _in_plain_steps(points: tuple[Point, ...]) -> tuple[Point, ...]:
    widths = [width for width, _ in points]
    if len(points) < 2 or widths[0] != 1 or widths != sorted(set(widths)):
        raise ValueError("points must be two or more, with widths that rise from 1")
    return tuple((width, cost / points[0][1]) for width, cost in points)


Points = Annotated[tuple[Annotated[Point, BeforeValidator(_as_pair)], ...], AfterValidator(_in_plain_steps)]


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of a step by its width, as (width, cost) at widths that rise from 1, where the cost is 1.

    kind: "measured" by Reprise, or "published" by others. source: who measured the costs, and how.
    """

    name: str
    points: Points
    machine: str = ""
    kind: Literal["measured", "published"] = "measured"
    source: str = ""

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width, on straight lines between the points.

        Beyond the last point it follows the overall slope, which is a guess. The last segment's slope would
        not do: a staircase ends flat, and any width beyond would be free.
        """
        last_width, last_cost = self.points[-1]
        if width > last_width:
            return last_cost + (width - last_width) * max(0.0, (last_cost - 1.0) / (last_width - 1))
        return float(np.interp(width, *zip(*self.points, strict=True)))


M4_PRO = Curve(
    "M4 Pro 4-bit", ((1, 1.0), (2, 0.99), (3, 1.13), (4, 1.43), (5, 1.75), (8, 2.84), (10, 4.5), (32, 4.5)),
    "Apple M4 Pro, 4-bit weights", "published",
    "measured by others on Metal and quoted as published; not measured here",
)  # fmt: skip
CPU_BF16 = Curve(
    "CPU bf16", ((1, 1.0), (2, 1.3), (4, 1.75), (8, 2.8)),
    "Linux, x86_64, MLX's CPU build with its reference BLAS, one core", "measured",
    "measured with a Llama of 28 million parameters in bfloat16, up to width 8",
)  # fmt: skip
FLAT = Curve("flat", ((1, 1.0), (32, 1.0)))
"""A curve of no machine, on which width is free: its speedups are tokens per forward pass."""


def built_in() -> dict[str, Curve]:
    """Return the curves that come with Reprise, by name."""
    return {"apple-m4-pro-4bit": M4_PRO, "cpu-bf16": CPU_BF16}


def find_curve(name: str) -> Curve:
    """Return a built-in curve by its name, or read a file. Raises ArgumentsError."""
    return built_in().get(name) or read_curve(Path(name))


def read_curve(path: Path) -> Curve:
    """Read a curve from a curve file or a result document. Raises ArgumentsError."""
    try:
        return _READER.validate_json(path.read_bytes())
    except OSError as fault:
        raise ArgumentsError(f"{path} cannot be read: {fault.strerror}") from None
    except ValidationError as fault:
        raise ArgumentsError(f"{path}: {reason(fault)}") from None


def _of_document(content: Any) -> Any:
    """Return the fields of a curve; those of a result document are taken from it."""
    if not isinstance(content, dict) or not content.keys() & {"points", "cost_curve"}:
        raise ValueError("it is not a cost curve: it is no JSON object with points or cost_curve")
    if "points" in content:
        return content
    machine, model = (content.get(name) or {} for name in ("machine", "model"))
    cpu = machine.get("cpu", "an unknown machine")
    return {
        "name": f"{model.get('name', 'a model')} on {cpu}", "machine": cpu, "points": content["cost_curve"],
        "source": f"{content.get('command')}, {content.get('date')}",
    }  # fmt: skip


_READER: TypeAdapter[Curve] = TypeAdapter(Annotated[Curve, BeforeValidator(_of_document)])


def describe(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Describe the curves for a result document."""
    return [asdict(curve) for curve in curves]
