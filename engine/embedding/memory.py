"""Estimate the memory that a pass takes at most, and hold it while it runs."""

from engine.embedding.encoder import Config
from engine.memory.sharing import SharedMemory

NUMBER_BYTES = 4
NUM_HIDDEN, NUM_INNER, NUM_SCORES = 16, 4, 4
"""Arrays of a layer that exist at once at most: of the size of its states, of its inner states, and of what
each token attends to."""


def bytes_of(config: Config, num_texts: int, num_tokens: int) -> int:
    """Return an upper estimate of the memory of a pass of so many texts, padded to so many tokens."""
    heads = config["num_attention_heads"]
    # All heads together may be wider than the states, as in Qwen3.
    size = max(config["hidden_size"], heads * (config.get("head_dim") or 0))
    each = NUM_HIDDEN * size + NUM_INNER * config["intermediate_size"]
    each += NUM_SCORES * heads * num_tokens
    return int(NUMBER_BYTES * num_texts * num_tokens * each)


class PassMemory:
    """The memory that a model that embeds holds. shared: the memory of all models, set by the pool."""

    def __init__(self, weight_bytes: int, config: Config) -> None:
        self.weight_bytes = weight_bytes
        self.shared: SharedMemory | None = None
        self._config = config
        self._pass_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Weights, and what the pass takes that runs."""
        return self.weight_bytes + self._pass_bytes

    def give_up(self, num_bytes: int) -> bool:  # noqa: ARG002 - it keeps nothing
        """Drop nothing: it keeps no prefixes."""
        return False

    def take(self, num_texts: int, num_tokens: int) -> bool:
        """Reserve the memory of a pass, until release(); return False if there is not so much now."""
        needed = bytes_of(self._config, num_texts, num_tokens)
        if self.shared and not self.shared.make_room(needed, self):
            return False
        self._pass_bytes = needed
        return True

    def release(self) -> None:
        """Give the memory of a pass back."""
        self._pass_bytes = 0

    def fault(self, num_tokens: int) -> str | None:
        """Say that a text of so many tokens can never be computed; None if it can."""
        needed = self.weight_bytes + bytes_of(self._config, 1, num_tokens)
        if self.shared is None or needed <= self.shared.limit_bytes:
            return None
        return (
            f"a text of {num_tokens} tokens takes {needed / 2**20:,.0f} MiB with the weights, and there are "
            f"{self.shared.limit_bytes / 2**20:,.0f} MiB for all models (--memory-bytes); send a shorter text"
        )
