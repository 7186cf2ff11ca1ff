"""Put the figures into words: which draft type and length to use for this model on this machine, and why."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from bench.economics.figures import Choice, Fit, Slope
from bench.statistics import Estimate

WORTH = 1.03
"""One choice is advised over another only if it is faster by this factor."""

ROUGH = 0.05
"""A line that misses a break-even by more acceptance than this is called a rough fit."""


def advise(
    fits: Sequence[Fit],
    slope: Slope | None,
    choices: Sequence[Choice],
    held_out: Mapping[str, Estimate],
    gains: Mapping[str, Estimate],
    model_needs: Mapping[int, Estimate],
) -> list[str]:
    """Return the advice as sentences, the most useful first.

    held_out: by workload, the speedup of the best choice on chats that were not used to choose it.
    gains: by workload, that speedup relative to auto.
    model_needs: by draft length, the acceptance at which the draft model pays; empty without a draft model.
    """
    workloads = list(dict.fromkeys(choice.workload for choice in choices))
    return [
        *_overall_advice(choices, workloads, gains),
        *(_workload_advice(choices, workload, held_out.get(workload)) for workload in workloads),
        *_draft_model_advice(choices, model_needs),
        *_break_even_advice(fits),
        *_slope_advice(slope),
    ]


def best_of(choices: Sequence[Choice], workload: str) -> Choice | None:
    """Return the fastest fixed draft type and length for a workload."""
    fixed = [choice for choice in choices if choice.workload == workload and not choice.is_gated]
    return max(fixed, key=lambda choice: choice.speedup.value, default=None)


def _auto_of(choices: Sequence[Choice], workload: str) -> Choice | None:
    return next((c for c in choices if c.workload == workload and c.is_gated), None)


def _overall_advice(
    choices: Sequence[Choice], workloads: Sequence[str], gains: Mapping[str, Estimate]
) -> list[str]:
    """Advise which flags to use, over all workloads."""
    better, paying, unsure = {}, [], []
    for workload in workloads:
        best = best_of(choices, workload)
        if best and best.pays and best.speedup.value > WORTH:
            paying.append(workload)
        if (
            best
            and best.share_drafted
            and not best.pays
            and (best.speedup.high is None or best.speedup.high > WORTH)
        ):
            unsure.append(workload)
        gain = gains.get(workload)
        if best and best.pays and gain and gain.value > WORTH and gain.low is not None and gain.low > 1.0:
            better[workload] = best, gain
    autos = [choice for choice in choices if choice.is_gated]
    losing = [choice.workload for choice in autos if choice.speedup.high and choice.speedup.high < 1.0]
    sentences = []
    if not paying and not any(auto.pays for auto in autos) and unsure:
        sentences.append(
            f"These runs vary too much to say whether drafting pays on {', '.join(unsure)}. Repeat them on "
            "an idle machine, with more --chats, --max-tokens or --repeats."
        )
    elif not paying and not any(auto.pays for auto in autos):
        cost = f"auto is slower, by {_loss(autos)}" if losing else "auto is not slower either"
        sentences.append(f"Drafting pays on none of these workloads: use --draft-type none; {cost}.")
    elif autos and not better:
        sentences.append(
            "Use --draft-type auto, the default, which stops drafting where it does not pay: no fixed type "
            f"and length is reliably more than {100 * (WORTH - 1):.0f} % faster on any of these workloads."
        )
    for workload, (best, gain) in better.items():
        sentences.append(
            f"For chats like {workload}, use {_flags(best)}: {_times(best.speedup)} as fast as plain "
            f"decoding, and {_times(gain)} as fast as auto on held-out chats."
        )
    if better and len(better) < len(workloads):
        sentences.append("For other or mixed chats, use --draft-type auto.")
    if losing and paying:
        sentences.append(f"Note: auto is slower than plain on {', '.join(losing)}, by {_loss(autos)}.")
    return sentences


def _workload_advice(choices: Sequence[Choice], workload: str, held_out: Estimate | None) -> str:
    best, auto = best_of(choices, workload), _auto_of(choices, workload)
    parts = []
    if best is None or best.share_drafted == 0:
        parts.append("no drafted token was accepted")
    elif best.pays and best.speedup.value > WORTH:
        sentence = (
            f"{best.draft_type} with drafts of {best.num_draft_tokens} is the best fixed choice, "
            f"{_times(best.speedup)} as fast as plain: {_share(best.acceptance)} of drafted tokens are "
            f"accepted, which make up {_share(best.share_drafted)} of the answer"
        )
        if held_out:
            sentence += f" (on held-out chats: {_times(held_out)})"
        parts.append(sentence)
    else:
        parts.append(
            f"no fixed choice pays reliably; {best.draft_type} with drafts of {best.num_draft_tokens} comes "
            f"closest, {_times(best.speedup)} as fast as plain at {_share(best.acceptance)} acceptance"
        )
    if auto:
        parts.append(f"auto: {_times(auto.speedup)}")
    return f"{workload}: {'; '.join(parts)}."


def _draft_model_advice(choices: Sequence[Choice], needs: Mapping[int, Estimate]) -> list[str]:
    parts = []
    for length, need in sorted(needs.items()):
        of_length = [c for c in choices if c.draft_type == "draft-model" and c.num_draft_tokens == length]
        reached = ", ".join(f"{_share(choice.acceptance)} on {choice.workload}" for choice in of_length)
        parts.append(f"{_share(need.value)} with drafts of {length} (reached: {reached})")
    if not parts:
        return []
    return [f"To pay, including its own time, the draft model needs an acceptance of {', '.join(parts)}."]


def _break_even_advice(fits: Sequence[Fit]) -> list[str]:
    known = [fit for fit in fits if isfinite(fit.break_even.value)]
    if not known:
        return []
    parts = [
        f"{fit.num_draft_tokens} ({_paying_from(fit.break_even)}; "
        f"a step costs {fit.step_cost:.2f} plain steps)"
        for fit in known
    ]
    return [f"Drafts that are free to make pay, by draft length: {', '.join(parts)}."]


def _paying_from(need: Estimate) -> str:
    if need.value <= 0:
        return "at any acceptance"
    if need.value >= 1:
        return "never"
    spread = f", 95 % interval {_ends(need, 100, 0)} %" if need.low is not None else ""
    return f"from {_share(need.value)} acceptance{spread}"


def _slope_advice(slope: Slope | None) -> list[str]:
    if slope is None:
        return []
    r, beta = slope.r, slope.beta
    spread = f" (95 % interval {_ends(beta, 100, 1)})" if beta.low is not None else ""
    sentence = (
        f"Each additional draft token changes the acceptance needed to break even by {100 * beta.value:+.1f} "
        f"percentage points{spread}: alpha = {r.value:.3f} {beta.value:+.4f} k"
    )
    rough = f", a rough fit that is off by up to {100 * slope.off:.0f} points"
    return [f"{sentence}{rough if slope.off > ROUGH else ''}."]


def _flags(choice: Choice) -> str:
    return f"--draft-type {choice.draft_type} --num-draft-tokens {choice.num_draft_tokens}"


def _times(estimate: Estimate) -> str:
    spread = f" ({_ends(estimate, 1, 2)})" if estimate.low is not None else ""
    return f"{estimate.value:.2f} times{spread}"


def _ends(estimate: Estimate, scale: float, digits: int) -> str:
    low, high = estimate.low or 0.0, estimate.high or 0.0
    return f"{scale * low:.{digits}f} to {scale * high:.{digits}f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _loss(autos: Sequence[Choice]) -> str:
    return f"up to {100 * (1 - min(auto.speedup.value for auto in autos)):.0f} %"


def described(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the errors of predictions, in one sentence for each method."""
    sentences = []
    for by in dict.fromkeys(row["by"] for row in errors):
        parts = [
            f"{100 * row['median_error']:.0f} % on {row['draft_type']} ({row['n']} runs)"
            for row in errors
            if row["by"] == by
        ]
        sentences.append(f"Median error of speedups predicted by the {by}: {', '.join(parts)}.")
    return sentences
