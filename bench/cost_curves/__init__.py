"""Cost curves: the cost of a step by its width, relative to a plain step; measured here or published.

    {"name": "M4 Pro 4-bit", "machine": "...", "kind": "measured" | "published", "source": "...",
     "points": [[1, 1.0], [2, 0.99], ...]}

Points are (width, cost) in any unit, starting at width 1. A result document with an engine's step costs, as
`reprise bench decode --json` writes it, is a curve too. The JSON files in this folder are built in.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from bench.errors import ArgumentsError, reason


class CurveError(ArgumentsError):
    """A cost curve cannot be used; the message names the file and what is wrong in it."""


def _as_pair(point: Any) -> Any:
    """Return a point as a pair; result documents have it as an object."""
    return (point.get("width"), point.get("seconds")) if isinstance(point, dict) else point


Point = tuple[int, Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]]
"""Width and cost."""


def _in_plain_steps(points: tuple[Point, ...]) -> tuple[Point, ...]:
    widths = [width for width, _ in points]
    if len(points) < 2 or widths[0] != 1 or widths != sorted(set(widths)):
        raise ValueError("points must be two or more, with widths that rise from 1")
    return tuple((width, cost / points[0][1]) for width, cost in points)


Points = Annotated[tuple[Annotated[Point, BeforeValidator(_as_pair)], ...], AfterValidator(_in_plain_steps)]


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of a step by its width.

    points: at least two (width, cost), widths ascending from 1; the cost at width 1 is 1.
    kind: "measured" by Reprise, or "published" by others. source: who measured the costs, and how.
    """

    name: str
    points: Points
    machine: str = ""
    kind: Literal["measured", "published"] = "measured"
    source: str = ""

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width.

        It is linear between points. Beyond the last point it follows the overall slope, which is a guess. The
        last segment's slope would not do: a staircase ends flat, and any width beyond would be free.
        """
        last_width, last_cost = self.points[-1]
        if width > last_width:
            return last_cost + (width - last_width) * max(0.0, (last_cost - 1.0) / (last_width - 1))
        at = max(1, bisect_left(self.points, (width, 0.0)))
        (low, a), (high, b) = self.points[at - 1 : at + 1]
        return a + (width - low) * (b - a) / (high - low)


def _of_document(content: Any) -> Any:
    """Return the fields of a curve; those of a result document are taken from it."""
    if not isinstance(content, dict) or not content.keys() & {"points", "cost_curve"}:
        raise ValueError("it is not a cost curve: it is no JSON object with points or cost_curve")
    if "points" in content:
        return content
    if content["cost_curve"] == []:
        raise ValueError("its cost_curve is empty: it was written without an engine")
    machine, model = (content.get(name) or {} for name in ("machine", "model"))
    cpu = machine.get("cpu", "an unknown machine")
    return {
        "name": f"{model.get('name', 'a model')} on {cpu}", "machine": cpu, "points": content["cost_curve"],
        "source": f"{content.get('command', 'a result document')}, {content.get('date', 'no date')}",
    }  # fmt: skip


_READER: TypeAdapter[Curve] = TypeAdapter(Annotated[Curve, BeforeValidator(_of_document)])


def read_curve(path: Path) -> Curve:
    """Read a curve from a curve file or a result document. Raises CurveError."""
    try:
        return _READER.validate_json(path.read_bytes())
    except OSError as fault:
        raise CurveError(f"{path} cannot be read: {fault.strerror}") from None
    except ValidationError as fault:
        raise CurveError(f"{path}: {reason(fault)}") from None


def built_in() -> dict[str, Curve]:
    """Return the curves that come with Reprise, by the names of their files."""
    return {path.stem: read_curve(path) for path in sorted(Path(__file__).parent.glob("*.json"))}


def find_curve(name: str) -> Curve:
    """Return a built-in curve by its name, or read a file. Raises CurveError."""
    return built_in().get(name) or read_curve(Path(name))


M4_PRO, CPU_BF16 = (find_curve(name) for name in ("apple-m4-pro-4bit", "cpu-bf16"))
FLAT = Curve("flat", ((1, 1.0), (32, 1.0)))
"""A curve of no machine, on which width is free: its speedups are tokens per forward pass."""


def describe(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Describe the curves for a result document."""
    return [asdict(curve) for curve in curves]
