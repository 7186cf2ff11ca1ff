"""Put the figures into words: which draft type and length to use for this model on this machine, and why."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.economics.trials import CONTROLLED
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
    choices = found["choices"]
    workloads = list(dict.fromkeys(choice["workload"] for choice in choices))
    autos = [choice for choice in choices if choice["is_gated"]]
    fixed = [choice for choice in choices if not choice["is_gated"]]
    best = {one["workload"]: one for one in sorted(fixed, key=lambda choice: choice["speedup"])}
    held_out = {one["workload"]: one for one in found["held_out"]}
    return [
        *_overall(best, autos, workloads, {one["workload"]: one for one in over_auto}),
        *(_of_workload(name, best.get(name), autos, held_out.get(name)) for name in workloads),
        *_of_draft_model(found["draft_model"], choices),
        *_of_break_evens(found["fits"], found["beta"]),
        *_of_errors(found["errors"]),
        _of_energy(found["energy"]),
    ]


def _overall(
    best: Mapping[str, Row], autos: Sequence[Row], workloads: Sequence[str], gains: Mapping[str, Row]
) -> list[str]:
    """Advise which flags to use, over all workloads."""
    is_paying = any(one["pays"] and one["speedup"] > WORTH for one in best.values())
    unsure = [
        name
        for name, one in best.items()
        if one["share_drafted"] and not one["pays"] and (one["high"] is None or one["high"] > WORTH)
    ]
    better = {
        name: gain
        for name, gain in gains.items()
        if best[name]["pays"] and gain["speedup"] > WORTH and (gain["low"] or 0.0) > 1.0
    }
    losing = [choice["workload"] for choice in autos if choice["high"] and choice["high"] < 1.0]
    loss = f"up to {100 * (1 - min((auto['speedup'] for auto in autos), default=1.0)):.0f} %"
    sentences = []
    if not is_paying and not any(auto["pays"] for auto in autos):
        cost = f"auto is slower, by {loss}" if losing else "auto is not slower either"
        sentences.append(
            f"These runs vary too much to say whether drafting pays on {', '.join(unsure)}. Repeat them on "
            "an idle machine, with more --chats, --max-tokens or --repeats."
            if unsure
            else f"Drafting pays on none of these workloads: use --draft-type none; {cost}."
        )
    elif autos and not better:
        sentences.append(
            "Use --draft-type auto, the default, which stops drafting where it does not pay: no fixed type "
            f"and length is reliably more than {100 * (WORTH - 1):.0f} % faster on any of these workloads."
        )
    sentences += [
        f"For chats like {name}, use --draft-type {best[name]['draft_type']} --num-draft-tokens "
        f"{best[name]['num_draft_tokens']}: {_times(best[name])} as fast as plain decoding, and "
        f"{_times(gain)} as fast as auto on held-out chats."
        for name, gain in better.items()
    ]
    if better and len(better) < len(workloads):
        sentences.append("For other or mixed chats, use --draft-type auto.")
    if losing and is_paying:
        sentences.append(f"Note: auto is slower than plain on {', '.join(losing)}, by {loss}.")
    return sentences


def _of_workload(name: str, best: Row | None, autos: Iterable[Row], held_out: Row | None) -> str:
    if best is None or best["share_drafted"] == 0:
        text = "no drafted token was accepted"
    else:
        which = f"{best['draft_type']} with drafts of {best['num_draft_tokens']}"
        accepted = _share(best["acceptance"])
        text = f"no fixed choice pays reliably; {which} comes closest, {_times(best)} as fast as plain"
        text += f" at {accepted} acceptance"
        if best["pays"] and best["speedup"] > WORTH:
            text = f"{which} is the best fixed choice, {_times(best)} as fast as plain: {accepted} of drafted"
            text += f" tokens are accepted, which make up {_share(best['share_drafted'])} of the answer"
            text += f" (on held-out chats: {_times(held_out)})" if held_out else ""
    auto = "".join(f"; auto: {_times(auto)}" for auto in autos if auto["workload"] == name)
    return f"{name}: {text}{auto}."


def _of_draft_model(needs: Sequence[Row], choices: Sequence[Row]) -> list[str]:
    parts = []
    for need in needs:
        length = need["num_draft_tokens"]
        reached = [
            f"{_share(one['acceptance'])} on {one['workload']}"
            for one in choices
            if (one["draft_type"], one["num_draft_tokens"]) == ("draft-model", length)
        ]
        parts.append(f"{_share(need['break_even'])} with drafts of {length} (reached: {', '.join(reached)})")
    if not parts:
        return []
    return [f"To pay, including its own time, the draft model needs an acceptance of {', '.join(parts)}."]


def _of_break_evens(fits: Sequence[Row], slope: Row | None) -> Iterable[str]:
    parts = []
    for one in fits:
        if (even := one["break_even"]) is None:
            continue
        spread = f", 95 % interval {_ends(one, 100, 0)} %" if one["low"] is not None else ""
        paying = f"from {_share(even)} acceptance{spread}"
        paying = "at any acceptance" if even <= 0 else "never" if even >= 1 else paying
        step = f"a step costs {one['step_cost']:.2f} plain steps"
        parts.append(f"{one['num_draft_tokens']} ({paying}; {step})")
    if parts:
        yield f"Drafts that are free to make pay, by draft length: {', '.join(parts)}."
    if slope:
        beta, off = slope["beta"], slope["off"]
        spread = f" (95 % interval {_ends(slope, 100, 1)})" if slope["low"] is not None else ""
        rough = f", a rough fit that is off by up to {100 * off:.0f} points" if off > ROUGH else ""
        yield (
            f"Each additional draft token changes the acceptance needed to break even by {100 * beta:+.1f} "
            f"percentage points{spread}: alpha = {slope['r']:.3f} {beta:+.4f} k{rough}."
        )


def _of_errors(errors: Sequence[Row]) -> Iterable[str]:
    """Describe the errors of predictions, in one sentence for each method."""
    for by in dict.fromkeys(row["by"] for row in errors):
        parts = [
            f"{_share(row['median_error'])} on {row['draft_type']} ({row['n']} runs)"
            for row in errors
            if row["by"] == by
        ]
        yield f"Median error of speedups predicted by the {by}: {', '.join(parts)}."


def _of_energy(energy: Mapping[str, Any]) -> str:
    """Describe the energy per token, or why it is unknown."""
    if not energy["rows"]:
        return f"Energy: not measured ({energy['reason'] or 'no answer was measured'})."
    real = [row for row in energy["rows"] if row["draft_type"] != CONTROLLED and row["ratio"]]
    if not real:
        return f"Energy of {energy['measured']}: measured only for controlled drafts."
    least = min(real, key=lambda row: row["ratio"])
    return (
        f"Energy of {energy['measured']}, including prefill and everything else that ran: lowest with "
        f"{least['draft_type']} and {least['num_draft_tokens']} draft tokens on {least['workload']}, "
        f"{least['energy_j_per_token']:.3g} J per token, against {least['plain_j_per_token']:.3g} J plain."
    )


def _times(one: Row) -> str:
    spread = f" ({_ends(one, 1, 2)})" if one["low"] is not None else ""
    return f"{one['speedup']:.2f} times{spread}"


def _ends(one: Row, scale: float, digits: int) -> str:
    return f"{scale * (one['low'] or 0):.{digits}f} to {scale * (one['high'] or 0):.{digits}f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
