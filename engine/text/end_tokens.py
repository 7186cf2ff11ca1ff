"""The tokens that end an answer (EOS), by the model's configuration and by the format of its answers."""

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

HARMONY_ENDS = ("<|call|>", "<|return|>")
"""The tokens that end an answer in harmony."""


def find_end_tokens(wrapped: TokenizerWrapper, backend: Any, is_harmony: bool) -> frozenset[int]:
    """Return the tokens that end an answer; the format of answers may have some that no configuration names.

    backend: the tokenizers.Tokenizer underneath.
    """
    ends = HARMONY_ENDS if is_harmony else ()
    return frozenset([*wrapped.eos_token_ids, *map(backend.token_to_id, ends)])
