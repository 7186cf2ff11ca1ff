"""Propose a model that fits into the memory of this machine, from a list that is kept here."""

from dataclasses import dataclass

from reprise.cli.checks.check import Check
from reprise.cli.units import format_bytes
from reprise.config.agents.known import WANTED_TOKENS


@dataclass(frozen=True)
class Proposal:
    """A model to begin with. name: as `reprise serve` takes it. weight_bytes: about its weights' size.

    token_bytes: keys and values of a token. context_tokens: the longest text that it was made for.
    """

    name: str
    weight_bytes: int
    token_bytes: int
    context_tokens: int
    good_for: str

    @property
    def agent_bytes(self) -> int:
        """About the memory that it takes with a context as agents want it."""
        return self.weight_bytes + WANTED_TOKENS * self.token_bytes + WORKING_BYTES


WORKING_BYTES = 1 << 30
"""For a step's own arrays and the program, as in docs/models.md."""

_MIB = 1 << 20
PROPOSALS = (
    # In bfloat16, as it is served without a GPU; with one it takes less.
    Proposal("smollm2", 257 * _MIB, 23_040, 8192, "trying chats; it errs often"),
    Proposal("mlx-community/Qwen3-0.6B-4bit", 320 * _MIB, 114_688, 40_960, "short answers and small edits"),
    Proposal("mlx-community/Qwen3-1.7B-4bit", 923 * _MIB, 114_688, 40_960, "short answers and small edits"),
    Proposal(
        "mlx-community/Qwen3-4B-Instruct-2507-4bit", 2158 * _MIB, 147_456, 262_144, "chats, edits and agents"
    ),
    Proposal("mlx-community/Qwen3-8B-4bit", 4394 * _MIB, 147_456, 40_960, "chats and edits"),
    Proposal("mlx-community/Qwen3-14B-4bit", 7923 * _MIB, 163_840, 40_960, "chats and edits"),
    Proposal("mlx-community/gpt-oss-20b-MXFP4-Q4", 11_229 * _MIB, 24_576, 131_072, "chats, edits and agents"),
    Proposal(
        "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit", 16_379 * _MIB, 98_304, 262_144,
        "agents; it computes with 3B parameters at a time",
    ),
    Proposal(
        "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", 42_743 * _MIB, 24_576, 262_144,
        "agents with long contexts",
    ),
)  # fmt: skip
"""From small to large, all of them also in docs/models.md, with the same sizes. They are calculated; none was
downloaded for this list."""

SHARE = 0.6
"""Share of the memory for models and caches that weights may take: an agent's context takes the rest."""


def propose(usable_bytes: int, has_gpu: bool) -> Proposal:
    """Return the largest model of the list that fits into the memory for models and caches.

    Without a GPU, return the smallest model: MLX then computes slowly with the hub's 4-bit weights, whose
    scales are bfloat16, and the smallest model is converted on this machine, with other scales.
    """
    fitting = [one for one in PROPOSALS if one.weight_bytes <= SHARE * usable_bytes]
    return fitting[-1] if fitting and has_gpu else PROPOSALS[0]


def propose_for_agents(usable_bytes: int, has_gpu: bool) -> Proposal | None:
    """Return the largest model that fits with a context as agents want it; None if none does."""
    fitting = [one for one in PROPOSALS if one.context_tokens >= WANTED_TOKENS]
    fitting = [one for one in fitting if one.agent_bytes <= usable_bytes]
    return fitting[-1] if fitting and has_gpu else None


def check_proposal(usable_bytes: int, has_gpu: bool) -> Check:
    """Propose a model to begin with on this machine, and one for agents if that is another."""
    one, other = propose(usable_bytes, has_gpu), propose_for_agents(usable_bytes, has_gpu)
    found = (
        f"{one.name} fits: about {format_bytes(one.weight_bytes)} of weights, a context of up to "
        f"{one.context_tokens:,} tokens, for {one.good_for}"
    )
    if other is None:
        found += f"; none of the list is for agents here, which want {WANTED_TOKENS:,} tokens"
    advice = f"reprise serve {one.name}"
    if other not in (None, one):
        advice += f", or for agents, which want {WANTED_TOKENS:,} tokens: reprise serve {other.name}"
    return Check("a model for this machine", "ok", found, advice)
