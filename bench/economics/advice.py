"""The figures in words: which draft type and length to use with this model on this machine, and why."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from bench.economics.figures import Choice, Fit, Slope
from bench.economics.fitting import Estimate

WORTH = 1.03
"""A choice must be so many times as fast as another to be advised instead of it."""

ROUGH = 0.05
"""A line that misses a break-even by more acceptance than this is called rough."""


def advise(
    fits: Sequence[Fit],
    slope: Slope | None,
    choices: Sequence[Choice],
    held_out: Mapping[str, Estimate],
    gains: Mapping[str, Estimate],
    model_needs: Mapping[int, Estimate],
) -> list[str]:
    """Sentences, the most useful first.

    held_out: by workload, what its best choice brings to chats that had no part in choosing it.
    gains: by workload, how many times as fast as auto that is.
    model_needs: acceptance that the draft model's drafts need to pay, by their length; empty without one.
    """
    workloads = list(dict.fromkeys(choice.workload for choice in choices))
    return [
        *_what_to_use(choices, workloads, gains),
        *(_of_workload(choices, workload, held_out.get(workload)) for workload in workloads),
        *_of_model(choices, model_needs),
        *_of_fits(fits),
        *_of_slope(slope),
    ]


def best_of(choices: Sequence[Choice], workload: str) -> Choice | None:
    """The fastest choice of a fixed type and length for a workload."""
    own = [choice for choice in choices if choice.workload == workload and not choice.is_gated]
    return max(own, key=lambda choice: choice.speedup.value, default=None)


def _auto_of(choices: Sequence[Choice], workload: str) -> Choice | None:
    return next((c for c in choices if c.workload == workload and c.is_gated), None)


def _what_to_use(
    choices: Sequence[Choice], workloads: Sequence[str], gains: Mapping[str, Estimate]
) -> list[str]:
    """What to type, over all workloads."""
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
    told = []
    if not paying and not any(auto.pays for auto in autos) and unsure:
        told.append(
            f"These runs do not tell whether drafting pays on {', '.join(unsure)}: they differ too much. Run "
            "it again on a machine that does nothing else, with more --chats, --max-tokens or --repeats."
        )
    elif not paying and not any(auto.pays for auto in autos):
        cost = f"; left to itself, auto costs {_lost(autos)}" if losing else ", and auto costs nothing either"
        told.append(f"Drafting pays on none of these workloads: --draft-type none is as fast as any{cost}.")
    elif autos and not better:
        told.append(
            "Use --draft-type auto, the default, which stops where drafts do not pay: no fixed type and "
            f"length is for certain more than {100 * (WORTH - 1):.0f} % faster on any of these workloads."
        )
    for workload, (best, gain) in better.items():
        told.append(
            f"For chats like {workload}, use {_flags(best)}: {_times(best.speedup)} as fast as plain "
            f"decoding, and {_times(gain)} as fast as auto on chats that had no part in choosing it."
        )
    if better and len(better) < len(workloads):
        told.append("For everything else, or a mixture, use --draft-type auto.")
    if losing and paying:
        told.append(f"Beware: auto is slower than plain decoding on {', '.join(losing)}, by {_lost(autos)}.")
    return told


def _of_workload(choices: Sequence[Choice], workload: str, held_out: Estimate | None) -> str:
    best, auto = best_of(choices, workload), _auto_of(choices, workload)
    parts = []
    if best is None or best.share_drafted == 0:
        parts.append("no drafter found anything to draft that came true")
    elif best.pays and best.speedup.value > WORTH:
        told = (
            f"{best.draft_type} with drafts of {best.num_draft_tokens} is best of the fixed ones, "
            f"{_times(best.speedup)} as fast as plain: {_share(best.acceptance)} of what it drafts comes "
            f"true, which is {_share(best.share_drafted)} of the answer"
        )
        if held_out:
            told += f" (for chats that had no part in choosing it: {_times(held_out)})"
        parts.append(told)
    else:
        parts.append(
            f"nothing pays for certain; {best.draft_type} with drafts of {best.num_draft_tokens} comes "
            f"nearest, {_times(best.speedup)} as fast as plain at {_share(best.acceptance)} acceptance"
        )
    if auto:
        parts.append(f"auto: {_times(auto.speedup)}")
    return f"{workload}: {'; '.join(parts)}."


def _of_model(choices: Sequence[Choice], needs: Mapping[int, Estimate]) -> list[str]:
    told = []
    for length, need in sorted(needs.items()):
        own = [c for c in choices if c.draft_type == "draft-model" and c.num_draft_tokens == length]
        got = ", ".join(f"{_share(choice.acceptance)} on {choice.workload}" for choice in own)
        told.append(f"{_share(need.value)} with drafts of {length} (it reached {got})")
    if not told:
        return []
    return [f"The draft model's own time counts too. To pay, it would have to be right in {', '.join(told)}."]


def _of_fits(fits: Sequence[Fit]) -> list[str]:
    known = [fit for fit in fits if isfinite(fit.break_even.value)]
    if not known:
        return []
    parts = [
        f"{fit.num_draft_tokens} ({_paying_from(fit.break_even)}; a step costs {fit.step_cost:.2f} plain)"
        for fit in known
    ]
    return [f"Drafts that cost nothing to make pay, with a length of {', '.join(parts)}."]


def _paying_from(need: Estimate) -> str:
    if need.value <= 0:
        return "at any acceptance"
    if need.value >= 1:
        return "never"
    spread = f", 95 %: {_ends(need, 100, 0)} %" if need.low is not None else ""
    return f"from {_share(need.value)} acceptance on{spread}"


def _of_slope(slope: Slope | None) -> list[str]:
    if slope is None:
        return []
    r, beta = slope.r, slope.beta
    spread = f" (95 %: {_ends(beta, 100, 1)})" if beta.low is not None else ""
    told = (
        f"Each further token of a draft moves the acceptance that it needs by {100 * beta.value:+.1f} "
        f"points{spread}: alpha = {r.value:.3f} {beta.value:+.4f} k"
    )
    rough = f", a rough guide here: it misses by up to {100 * slope.off:.0f} points"
    return [f"{told}{rough if slope.off > ROUGH else ''}."]


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


def _lost(autos: Sequence[Choice]) -> str:
    return f"{100 * (1 - min(auto.speedup.value for auto in autos)):.0f} % at most"


def described(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """How good predictions were, in one sentence for each way to make them."""
    told = []
    for by in dict.fromkeys(row["by"] for row in errors):
        parts = [
            f"{100 * row['median_error']:.0f} % on {row['draft_type']} ({row['n']} runs)"
            for row in errors
            if row["by"] == by
        ]
        told.append(
            f"Speed-ups foretold by the {by} missed those measured by a median of {', '.join(parts)}."
        )
    return told
