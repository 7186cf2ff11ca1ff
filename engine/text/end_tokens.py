"""The tokens that end an answer (EOS), by the model's configuration and by the format of its answers."""

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

HARMONY_ENDS = ("<|call|>", "<|return|>")
"""The tokens that end an answer in harmony."""


def find_end_tokens(wrapped: TokenizerWrapper, backend: Any, is_harmony: bool) -> frozenset[int]:
    """Return the tokens that end an answer, among them those of its format that no configuration names.

    backend: the tokenizers.Tokenizer under `wrapped`.
    """
    ends = HARMONY_ENDS if is_harmony else ()
    return frozenset([*wrapped.eos_token_ids, *map(backend.token_to_id, ends)])
