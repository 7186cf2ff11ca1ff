"""Cost curves: what a step costs by its width, a plain one being 1. Measured here, or published and named so.

    {"name": "M4 Pro 4-bit", "machine": "...", "kind": "measured" | "published", "source": "...",
     "points": [[1, 1.0], [2, 0.99], ...]}

Points are (width, cost) in any unit, from width 1 on. A result document with the costs that an engine worked
with, as `reprise bench decode --json` writes it, is a curve as well. The files beside this one are built in.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.errors import BenchError

Kind = Literal["measured", "published"]
Point = tuple[int, float]
"""Width and cost."""

KINDS: tuple[Kind, ...] = ("measured", "published")
WIDEST = 4096


class CurveError(BenchError):
    """A cost curve cannot be used; the message names the file and what is wrong in it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a step costs by its width.

    points: (width, cost), widths rising from 1, two at least, the cost at width 1 being 1.
    machine: what it is a curve of. kind: "measured" by Reprise, or "published" by others. source: by whom
    and how.
    """

    name: str
    points: tuple[Point, ...]
    machine: str = ""
    kind: Kind = "measured"
    source: str = ""

    @property
    def widest(self) -> int:
        """The last width that somebody measured."""
        return self.points[-1][0]

    def cost(self, width: int) -> float:
        """Between points by straight lines; beyond the last by the slope over all, which is a guess.

        Not by the last slope: a staircase ends flat, and would promise steps of any width for nothing.
        """
        if width > self.widest:
            last_width, last_cost = self.points[-1]
            return last_cost + (width - last_width) * max(0.0, (last_cost - 1.0) / (last_width - 1))
        at = min(max(bisect_right(self.points, (width, math.inf)), 1), len(self.points) - 1)
        (low, a), (high, b) = self.points[at - 1], self.points[at]
        return a + (width - low) * (b - a) / (high - low)


def read_curve(path: Path) -> Curve:
    """The curve in a file of its own, or in a result document. Raises CurveError."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise CurveError(f"{path} cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise CurveError(f"{path} is no JSON: {fault}") from None
    if not isinstance(said, dict):
        raise CurveError(f"{path} is no cost curve: it is no object")
    if "points" in said:
        return _own(said, path)
    if "cost_curve" in said:
        return _of_document(said, path)
    raise CurveError(f"{path} is no cost curve: it has neither points nor cost_curve")


def _own(said: dict[str, Any], path: Path) -> Curve:
    texts = {}
    for name in ("name", "machine", "source"):
        texts[name] = said.get(name, "")
        if not isinstance(texts[name], str) or (name != "machine" and not texts[name].strip()):
            raise CurveError(f"{path}: {name} must be text that says something")
    kind = said.get("kind")
    if kind not in KINDS:
        raise CurveError(f"{path}: kind must be one of {', '.join(KINDS)}")
    return Curve(points=_points(said["points"], path), kind=kind, **texts)


def _of_document(said: dict[str, Any], path: Path) -> Curve:
    machine, model = said.get("machine"), said.get("model")
    cpu = machine.get("cpu") if isinstance(machine, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    if isinstance(said["cost_curve"], list) and not said["cost_curve"]:
        raise CurveError(f"{path} has an empty cost_curve: it was written without an engine")
    return Curve(
        name=" ".join(str(part) for part in (name, "on", cpu) if part) if name and cpu else path.stem,
        points=_points(said["cost_curve"], path),
        machine=str(cpu or ""),
        kind="measured",
        source=f"{said.get('command') or 'a result document'}, {said.get('date') or 'no date'}",
    )


def _points(said: object, path: Path) -> tuple[Point, ...]:
    """The points of a file, in plain steps. Raises CurveError."""
    points = [_point(one, path) for one in said] if isinstance(said, list) else []
    widths = [width for width, _ in points]
    if len(points) < 2 or widths[0] != 1 or widths != sorted(set(widths)) or widths[-1] > WIDEST:
        raise CurveError(
            f"{path}: points must be two or more, of widths that rise from 1 to {WIDEST} at most"
        )
    plain = points[0][1]
    return tuple((width, cost / plain) for width, cost in points)


def _point(said: object, path: Path) -> Point:
    if isinstance(said, dict):
        said = [said.get("width"), said.get("seconds", said.get("cost"))]
    if isinstance(said, list) and len(said) == 2:
        width, cost = said
        if type(width) is int and type(cost) in (int, float) and 0 < cost < math.inf:
            return width, float(cost)
    shown = json.dumps(said)[:60]
    raise CurveError(f"{path}: {shown} is no point; one is [width, cost], both above 0")


def built_in() -> dict[str, Curve]:
    """The curves that come with Reprise, by the names of their files."""
    return {path.stem: read_curve(path) for path in sorted(Path(__file__).parent.glob("*.json"))}


M4_PRO, CPU_BF16 = (
    read_curve(Path(__file__).with_name(name)) for name in ("apple-m4-pro-4bit.json", "cpu-bf16.json")
)
FLAT = Curve("flat", ((1, 1.0), (32, 1.0)))
"""No machine: it shows tokens per forward where width costs nothing."""


def describe(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The curves for a result document."""
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
