"""Make engine requests from the turns of a workload."""

from bench.local_engine import LocalEngine
from bench.workloads import Turn
from engine.request import DraftChoice, GenerationRequest, Grammar, Sampling

FORBID = -1e9
FORCE, EVEN_OUT = 1e6, 1e4
"""The bias of the only allowed tokens, and a temperature that makes the model's own logits negligible."""


def request_of(
    local: LocalEngine,
    turn: Turn,
    max_tokens: int,
    seed: int,
    draft: DraftChoice,
    prediction: tuple[int, ...] = (),
) -> GenerationRequest | None:
    """Return the request of a turn; None if its prompt leaves no room for an answer.

    max_tokens: maximum answer length; the turn's own limit applies if it is lower.
    """
    prompt = local.prompt_of(turn)
    room = local.engine.info.context_tokens - len(prompt)
    if room < 1:
        return None
    bias = [(token, FORBID) for token in local.engine.tokenizer.eos_ids] if turn.is_endless else []
    first = local.engine.info.vocab_size // 2
    bias += [(first + number, FORCE) for number in range(turn.num_allowed)]
    temperature = EVEN_OUT if turn.num_allowed else turn.temperature
    return GenerationRequest(
        "bench",
        prompt,
        min(turn.max_tokens or max_tokens, max_tokens, room),
        Sampling(seed, temperature=temperature, logit_bias=tuple(bias)),
        draft=draft,
        prediction=prediction,
        grammar=Grammar("json_schema", turn.schema) if turn.schema else None,
    )
