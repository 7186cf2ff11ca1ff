"""The gate: choose the drafters that a request starts with, and how far to trust them.

The decision is only a start. While the answer is decoded, measured acceptance and costs decide
(acceptance.py, draft_length.py), and costs/slowdown_budget.py bounds the loss.
"""

from dataclasses import dataclass, replace

from reprise.config.settings import Settings
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.speculative.acceptance import MODELS
from reprise.engine.speculative.mask_drafts import MASKS

LOOKUPS = {
    "auto": ("suffix", "ngram-mod"),
    "ngram-simple": ("ngram-simple",),
    "ngram-mod": ("ngram-mod",),
    "suffix": ("suffix",),
}
"""Draft type -> the drafters that look text up, in the order in which they are asked."""

GATE_THRESHOLD = 0.01
"""Fraction of a prompt's 3-grams that must repeat for it to count as repetitive; --gate can name another."""

DOUBT = 2.0
"""Power to which prior acceptance rates are raised if the prompt does not repeat itself. See Acceptance."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The gate's decision for one request.

    decision: "lookup", one of MODELS, "wedlm" or "plain", as timings report it. reason: why, for people.
    drafters: names of the drafters to ask, in order. They include one of MODELS if the draft model or head
        may draft, and "wedlm" if the target may draft for itself.
    score: repetition of the prompt, in [0, 1]; None if the decision did not need it, or it is not known yet.
    doubt: >= 1; see Acceptance.
    is_final: False if the decision needs the score but it is not known yet.
    later: names of drafters to open now, but to ask only if the final decision names them.
    """

    decision: str
    reason: str
    drafters: tuple[str, ...] = ()
    score: float | None = None
    doubt: float = 1.0
    is_final: bool = True
    later: tuple[str, ...] = ()


SWITCHED_OFF = GateDecision("plain", "drafting is switched off")

WINDOWED = GateDecision("plain", "the answer is decoded in windows")


def decide(
    request: GenerationRequest,
    settings: Settings,
    model: str | None,
    has_masks: bool = False,
    score: float | None = None,
) -> GateDecision:
    """Decide which drafters a request starts with.

    model: the one of MODELS that this server has; None for none. has_masks: whether the target can draft for
        itself.
    score: repetition of the prompt, in [0, 1]; None if not known yet. A decision that needs it is then not
        final.
    """
    if not (request.images and model):
        return _decide(request, settings, model, has_masks, score)
    decision = _decide(request, settings, None, False, score)
    if decision is SWITCHED_OFF:
        return decision
    # A draft model reads no images, and a head is fed tokens that stand for none.
    return replace(decision, reason=f"{decision.reason}; {model} drafts no answers about images")


def _decide(
    request: GenerationRequest, settings: Settings, model: str | None, has_masks: bool, score: float | None
) -> GateDecision:
    if request.window_settings:
        return WINDOWED
    draft_type = request.draft.type or settings.draft_type
    if draft_type == "none" or request.draft.max_tokens == 0:
        return SWITCHED_OFF
    first = ("prediction",) if request.prediction else ()
    if draft_type in (*MODELS, MASKS) and request.images:
        return GateDecision("lookup" if first else "plain", "asked for by name", first)
    if draft_type in (*MODELS, MASKS):
        return GateDecision(draft_type, "asked for by name", (*first, draft_type))
    lookups = LOOKUPS[draft_type]
    if draft_type != "auto":
        return GateDecision("lookup", "asked for by name", (*first, *lookups))
    fresh = (MASKS, *([model] if model else ()))
    otherwise = model if model else MASKS if has_masks else "plain"
    everything = (*first, *lookups, *fresh)
    if settings.gate == "off":
        return GateDecision("lookup", "the gate is off", everything)
    if score is None:
        reason = "the prompt's repetition is not known yet"
        if settings.gate == "on":
            return GateDecision(otherwise, reason, (*first, *fresh), None, DOUBT, False, lookups)
        return GateDecision(otherwise, reason, everything, None, DOUBT, False)
    threshold = GATE_THRESHOLD if isinstance(settings.gate, str) else settings.gate
    compared = f"repetition {score:.3f}, threshold {threshold:g}"
    if score >= threshold:
        return GateDecision("lookup", compared, everything, score)
    if settings.gate == "on":
        return GateDecision(otherwise, compared, (*first, *fresh), score)
    if otherwise != "plain":
        return GateDecision(otherwise, compared, everything, score, DOUBT)
    return GateDecision("plain", f"{compared}; opens if drafts are accepted", everything, score, DOUBT)
