"""Put the figures into words: which draft type and length to use for this model on this machine, and why."""

from collections.abc import Iterator, Mapping, Sequence

from bench.experiment import Row
from bench.statistics import Estimate

WORTH = 1.03
"""One choice is advised over another only if it is faster by this factor."""


def advise(choices: Sequence[Row], over_auto: Mapping[str, Estimate], slope: Row | None) -> list[str]:
    """Return the advice as sentences, the most useful first.

    over_auto: by workload, the speedup over auto of the best choice on chats that were not used to choose it.
    slope: of break-evens by draft length.
    """
    autos = {one["workload"]: one for one in choices if one["is_gated"]}
    fixed = sorted((one for one in choices if not one["is_gated"]), key=lambda one: one["speedup"])
    best = {one["workload"]: one for one in fixed}
    sentences = [*_overall(best, autos, over_auto)]
    for name, one in best.items():
        auto = f"; auto: {_times(autos[name])}" if name in autos else ""
        which = f"{one['draft_type']} with drafts of {one['num_draft_tokens']}"
        sentences.append(f"{name}: {which} is the best fixed choice, {_times(one)} as fast as plain{auto}.")
    if slope:
        points, ends = 100 * slope["beta"], _interval(slope["low"], slope["high"], 100, 1)
        sentences.append(
            "Each additional draft token changes the acceptance needed to break even by "
            f"{points:+.1f} percentage points{ends}: alpha = {slope['r']:.3f} {slope['beta']:+.4f} k."
        )
    return sentences


def _overall(
    best: Mapping[str, Row], autos: Mapping[str, Row], over_auto: Mapping[str, Estimate]
) -> Iterator[str]:
    """Advise which flags to use, over all workloads."""
    better = {
        name: gain
        for name, gain in over_auto.items()
        if name in autos and best[name]["pays"] and gain.value > WORTH and (gain.low or 0.0) > 1.0
    }
    for name, gain in better.items():
        flags = f"--draft-type {best[name]['draft_type']} --num-draft-tokens {best[name]['num_draft_tokens']}"
        times = f"{gain.value:.2f} times{_interval(gain.low, gain.high)}"
        yield f"For chats like {name}, use {flags}: {times} as fast as auto on held-out chats."
    unsure = [name for name, one in best.items() if one["share_drafted"] and (one["high"] or 2.0) > WORTH]
    if better:
        yield from ["For other or mixed chats, use --draft-type auto."] if len(better) < len(best) else []
    elif any(one["pays"] and one["speedup"] > WORTH for one in (*best.values(), *autos.values())):
        yield (
            "Use --draft-type auto, the default, which stops drafting where it does not pay: no fixed type "
            f"and length is reliably more than {100 * (WORTH - 1):.0f} % faster on any of these workloads."
        )
    elif unsure:
        yield (
            f"These runs vary too much to say whether drafting pays on {', '.join(unsure)}. Repeat them on "
            "an idle machine, with more --chats or --max-tokens."
        )
    else:
        slow = [auto["speedup"] for auto in autos.values() if (auto["high"] or 1.0) < 1.0]
        slower = f"auto is slower, by up to {1 - min(slow):.0%}" if slow else "auto is not slower"
        yield f"Drafting pays on none of these workloads: use --draft-type none; {slower}."


def _times(one: Row) -> str:
    return f"{one['speedup']:.2f} times{_interval(one['low'], one['high'])}"


def _interval(low: float | None, high: float | None, scale: float = 1, digits: int = 2) -> str:
    """Return an interval in parentheses; nothing if it is unknown."""
    if low is None or high is None:
        return ""
    return f" ({scale * low:.{digits}f} to {scale * high:.{digits}f})"
