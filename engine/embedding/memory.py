"""Estimate the most memory that a pass may take, and reserve it while the pass runs."""

from reprise.engine.embedding.design import Config
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.memory.between_models import SharedMemory

NUMBER_BYTES = 4
NUM_HIDDEN, NUM_INNER, NUM_SCORES, NUM_COPIES = 16, 4, 4, 4
"""Arrays of a layer that exist at once at most: of the size of its states, of its inner states, of what
each token attends to, and of the keys and values of a head in each text."""

HEAD_GROWTH_TOKENS = 256
"""mlx-lm's caches grow by so many tokens."""

PREFIX_BYTES = 256 * 2**20
"""For heads of texts, unless --prefix-cache-bytes says otherwise. They give way to whatever needs memory."""


def bytes_of(config: Config, num_texts: int, num_tokens: int, num_before: int = 0) -> int:
    """Return an upper estimate of the bytes of a pass over num_texts texts, each padded to num_tokens.

    num_before: tokens of the texts' head, which is computed before them, or kept.
    """
    heads = config["num_attention_heads"]
    # All heads together may be wider than the states, as in Qwen3.
    size = max(config["hidden_size"], heads * (config.get("head_dim") or 0))
    each = NUM_HIDDEN * size + NUM_INNER * config["intermediate_size"]

    def of(texts: int, tokens: int, seen: int) -> int:
        return int(NUMBER_BYTES * texts * tokens * (each + NUM_SCORES * heads * seen))

    whole = of(num_texts, num_tokens, num_before + num_tokens)
    if not num_before:
        return whole
    num_kept = config["num_hidden_layers"] + NUM_COPIES * num_texts
    held_bytes = 2 * NUMBER_BYTES * size * (num_before + HEAD_GROWTH_TOKENS) * num_kept
    return int(held_bytes) + max(whole, of(1, num_before, num_before))


class PassMemory:
    """The memory that a model that embeds or ranks holds.

    prefixes: the heads of texts that it keeps; None if it keeps none.
    shared: the memory of all models, set once this one is loaded; None if it is alone.
    """

    def __init__(self, weight_bytes: int, config: Config, prefixes: PrefixCache | None = None) -> None:
        self.weight_bytes = weight_bytes
        self.shared: SharedMemory | None = None
        self._config, self._prefixes = config, prefixes
        self._pass_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of the weights, the kept heads and the running pass."""
        return self.weight_bytes + self._pass_bytes + self._kept_bytes

    def give_up(self, num_bytes: int) -> bool:
        """Drop kept heads of num_bytes or more, or all; return whether any were dropped."""
        before = self._kept_bytes
        if self._prefixes:
            self._prefixes.shrink_to(max(0, before - num_bytes))
        return self._kept_bytes < before

    def take(self, num_texts: int, num_tokens: int, num_before: int = 0) -> bool:
        """Reserve the memory of a pass, until release(); return False if too little is free now.

        Arguments: see bytes_of().
        """
        needed = bytes_of(self._config, num_texts, num_tokens, num_before)
        while self.shared and not self.shared.make_room(needed + self._kept_bytes, self):
            if not self.give_up(needed):
                return False
        self._pass_bytes = needed
        return True

    def release(self) -> None:
        """End the reservation that take() made for a pass."""
        self._pass_bytes = 0

    @property
    def _kept_bytes(self) -> int:
        return self._prefixes.num_bytes if self._prefixes else 0

    def fault(self, num_tokens: int) -> str | None:
        """Return the reason why a text of this length can never be computed; None if it can."""
        needed = self.weight_bytes + bytes_of(self._config, 1, num_tokens)
        if self.shared is None or needed <= self.shared.limit_bytes:
            return None
        return (
            f"a text of {num_tokens} tokens takes {needed / 2**20:,.0f} MiB with the weights, and there are "
            f"{self.shared.limit_bytes / 2**20:,.0f} MiB for all models (--memory-bytes); send a shorter text"
        )
