"""Put the figures into words: which draft type and length to use for this model on this machine, and why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.experiment import Row

WORTH = 1.03
"""One choice is advised over another only if it is faster by this factor."""

ROUGH = 0.05
"""A line that misses a break-even by more acceptance than this is called a rough fit."""


def advise(found: Mapping[str, Any], over_auto: Sequence[Row]) -> list[str]:
    """Return the advice as sentences, the most useful first.

    found: the economics section. over_auto: by workload, the speedup over auto of the best choice on chats
    that were not used to choose it.
    """
    autos = {one["workload"]: one for one in found["choices"] if one["is_gated"]}
    fixed = sorted((one for one in found["choices"] if not one["is_gated"]), key=lambda one: one["speedup"])
    best = {one["workload"]: one for one in fixed}
    held_out = {one["workload"]: one for one in found["held_out"]}
    return [
        *_overall(best, autos, over_auto),
        *(_of_workload(one, autos.get(name), held_out.get(name)) for name, one in best.items()),
        *_of_slope(found["beta"]),
    ]


def _overall(best: Mapping[str, Row], autos: Mapping[str, Row], over_auto: Sequence[Row]) -> Iterator[str]:
    """Advise which flags to use, over all workloads."""
    better = {
        gain["workload"]: gain
        for gain in over_auto
        if best[gain["workload"]]["pays"] and gain["speedup"] > WORTH and (gain["low"] or 0.0) > 1.0
    }
    unsure = [
        name
        for name, one in best.items()
        if one["share_drafted"] and not one["pays"] and (one["high"] is None or one["high"] > WORTH)
    ]
    losing = [name for name, auto in autos.items() if auto["high"] and auto["high"] < 1.0]
    loss = f"up to {100 * (1 - min((auto['speedup'] for auto in autos.values()), default=1)):.0f} %"
    is_paying = any(_is_worth(one) for one in best.values()) or any(one["pays"] for one in autos.values())
    for name, gain in better.items():
        flags = f"--draft-type {best[name]['draft_type']} --num-draft-tokens {best[name]['num_draft_tokens']}"
        yield (
            f"For chats like {name}, use {flags}: {_times(best[name])} as fast as plain decoding, and "
            f"{_times(gain)} as fast as auto on held-out chats."
        )
    if better and len(better) < len(best):
        yield "For other or mixed chats, use --draft-type auto."
    elif is_paying and autos and not better:
        yield (
            "Use --draft-type auto, the default, which stops drafting where it does not pay: no fixed type "
            f"and length is reliably more than {100 * (WORTH - 1):.0f} % faster on any of these workloads."
        )
    if is_paying and losing:
        yield f"Note: auto is slower than plain on {', '.join(losing)}, by {loss}."
    elif not is_paying and unsure:
        yield (
            f"These runs vary too much to say whether drafting pays on {', '.join(unsure)}. Repeat them on "
            "an idle machine, with more --chats, --max-tokens or --repeats."
        )
    elif not is_paying:
        cost = f"auto is slower, by {loss}" if losing else "auto is not slower either"
        yield f"Drafting pays on none of these workloads: use --draft-type none; {cost}."


def _of_workload(best: Row, auto: Row | None, held_out: Row | None) -> str:
    which = f"{best['draft_type']} with drafts of {best['num_draft_tokens']}"
    verdict = "is the best fixed choice" if _is_worth(best) else "comes closest, but no fixed choice pays"
    others = {"on held-out chats": held_out, "auto": auto}
    compared = "".join(f"; {name}: {_times(one)}" for name, one in others.items() if one)
    return f"{best['workload']}: {which} {verdict}, {_times(best)} as fast as plain{compared}."


def _of_slope(slope: Row | None) -> Iterator[str]:
    """Say how the break-even depends on the draft length."""
    if slope:
        beta, off = slope["beta"], slope["off"]
        rough = f", a rough fit that is off by up to {100 * off:.0f} points" if off > ROUGH else ""
        yield (
            f"Each additional draft token changes the acceptance needed to break even by {100 * beta:+.1f} "
            f"percentage points{_interval(slope, 100, 1)}: alpha = {slope['r']:.3f} {beta:+.4f} k{rough}."
        )


def _is_worth(one: Row) -> bool:
    return bool(one["pays"] and one["speedup"] > WORTH)


def _times(one: Row) -> str:
    return f"{one['speedup']:.2f} times{_interval(one)}"


def _interval(one: Row, scale: float = 1, digits: int = 2) -> str:
    """Return an interval in parentheses; nothing if it is unknown."""
    if one["low"] is None or one["high"] is None:
        return ""
    return f" ({scale * one['low']:.{digits}f} to {scale * one['high']:.{digits}f})"
