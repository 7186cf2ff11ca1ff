"""Cost curves: the cost of a step by its width, relative to a plain step; measured here or published.

    {"name": "M4 Pro 4-bit", "machine": "...", "kind": "measured" | "published", "source": "...",
     "points": [[1, 1.0], [2, 0.99], ...]}

Points are (width, cost) in any unit, starting at width 1. A result document that contains an engine's step
costs, as `reprise bench decode --json` writes it, is also read as a curve. The JSON files in this folder are
built in.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.errors import ArgumentsError

Kind = Literal["measured", "published"]
Point = tuple[int, float]
"""Width and cost."""

KINDS: tuple[Kind, ...] = ("measured", "published")
WIDEST = 4096


class CurveError(ArgumentsError):
    """A cost curve cannot be used; the message names the file and what is wrong in it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of a step by its width.

    points: at least two (width, cost), widths ascending from 1; the cost at width 1 is 1.
    machine: on which the costs were measured. kind: "measured" by Reprise, or "published" by others.
    source: who measured them, and how.
    """

    name: str
    points: tuple[Point, ...]
    machine: str = ""
    kind: Kind = "measured"
    source: str = ""

    @property
    def widest(self) -> int:
        """The largest width that was measured."""
        return self.points[-1][0]

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width.

        It is linear between points. Beyond the last point it follows the overall slope, which is a guess. The
        last segment's slope would not do: a staircase ends flat, and any width beyond would be free.
        """
        if width > self.widest:
            last_width, last_cost = self.points[-1]
            return last_cost + (width - last_width) * max(0.0, (last_cost - 1.0) / (last_width - 1))
        at = min(max(bisect_right(self.points, (width, math.inf)), 1), len(self.points) - 1)
        (low, a), (high, b) = self.points[at - 1], self.points[at]
        return a + (width - low) * (b - a) / (high - low)


def read_curve(path: Path) -> Curve:
    """Read a curve from a curve file or a result document. Raises CurveError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise CurveError(f"{path} cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise CurveError(f"{path} is not JSON: {fault}") from None
    if not isinstance(content, dict):
        raise CurveError(f"{path} is not a cost curve: it is not a JSON object")
    if "points" in content:
        return _from_curve_file(content, path)
    if "cost_curve" in content:
        return _from_document(content, path)
    raise CurveError(f"{path} is not a cost curve: it has neither points nor cost_curve")


def _from_curve_file(content: dict[str, Any], path: Path) -> Curve:
    texts = {}
    for name in ("name", "machine", "source"):
        texts[name] = content.get(name, "")
        if not isinstance(texts[name], str) or (name != "machine" and not texts[name].strip()):
            raise CurveError(f"{path}: {name} must be text and not blank")
    kind = content.get("kind")
    if kind not in KINDS:
        raise CurveError(f"{path}: kind must be one of {', '.join(KINDS)}")
    return Curve(points=_points(content["points"], path), kind=kind, **texts)


def _from_document(content: dict[str, Any], path: Path) -> Curve:
    machine, model = content.get("machine"), content.get("model")
    cpu = machine.get("cpu") if isinstance(machine, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    if isinstance(content["cost_curve"], list) and not content["cost_curve"]:
        raise CurveError(f"{path} has an empty cost_curve: it was written without an engine")
    return Curve(
        name=" ".join(str(part) for part in (name, "on", cpu) if part) if name and cpu else path.stem,
        points=_points(content["cost_curve"], path),
        machine=str(cpu or ""),
        kind="measured",
        source=f"{content.get('command') or 'a result document'}, {content.get('date') or 'no date'}",
    )


def _points(value: object, path: Path) -> tuple[Point, ...]:
    """Return a file's points with costs in plain steps. Raises CurveError."""
    points = [_point(one, path) for one in value] if isinstance(value, list) else []
    widths = [width for width, _ in points]
    if len(points) < 2 or widths[0] != 1 or widths != sorted(set(widths)) or widths[-1] > WIDEST:
        raise CurveError(
            f"{path}: points must be two or more, with widths that rise from 1 to at most {WIDEST}"
        )
    plain = points[0][1]
    return tuple((width, cost / plain) for width, cost in points)


def _point(value: object, path: Path) -> Point:
    if isinstance(value, dict):
        value = [value.get("width"), value.get("seconds", value.get("cost"))]
    if isinstance(value, list) and len(value) == 2:
        width, cost = value
        if type(width) is int and type(cost) in (int, float) and 0 < cost < math.inf:
            return width, float(cost)
    shown = json.dumps(value)[:60]
    raise CurveError(f"{path}: {shown} is not a point; a point is [width, cost], both above 0")


def built_in() -> dict[str, Curve]:
    """Return the curves that come with Reprise, by the names of their files."""
    return {path.stem: read_curve(path) for path in sorted(Path(__file__).parent.glob("*.json"))}


M4_PRO, CPU_BF16 = (
    read_curve(Path(__file__).with_name(name)) for name in ("apple-m4-pro-4bit.json", "cpu-bf16.json")
)
FLAT = Curve("flat", ((1, 1.0), (32, 1.0)))
"""A curve of no machine, on which width is free: its speedups are tokens per forward pass."""


def describe(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Describe the curves for a result document."""
    return [
        {
            "name": curve.name,
            "machine": curve.machine,
            "kind": curve.kind,
            "source": curve.source,
            "points": [{"width": width, "cost": cost} for width, cost in curve.points],
        }
        for curve in curves
    ]
