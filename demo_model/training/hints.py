"""Auxiliary losses that show middle layers what to look for."""

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS
from reprise.demo_model.training.sizes import CONFIG


class Hints(nn.Module):
    """Auxiliary training losses on middle layers, which teach the model to find whole sentences.

    To quote the sentence that mentions a thing, a model must go from the thing to the start of its sentence
    and copy from there. Hours of training on answers alone did not teach that. So at every token, the third
    layer must predict the first token of the token's line or sentence. At a word that occurred before, the
    fourth layer must predict the first token of the line or sentence where the word first occurred. Each
    layer has its own matrix that reads the prediction from its state.
    """

    NUM_SAMPLED = 400
    WEIGHTS = (0.2, 0.4)

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        d = CONFIG["hidden_size"]
        self.matrices = nn.ParameterList(torch.linalg.qr(torch.randn(d, d))[0] for _ in self.WEIGHTS)
        ids = [[token] for token in range(CONFIG["vocab_size"])]
        texts = tokenizer.decode_batch(ids, skip_special_tokens=False)
        ends = [text.endswith(".") or "\n" in text or text in SPECIAL_TOKENS for text in texts]
        words = [len(text.strip()) > 3 and text.strip().isalpha() for text in texts]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)
        self.register_buffer("words", torch.tensor(words), persistent=False)

    def loss(self, states: list[Tensor], tokens: Tensor, embedding: Tensor) -> Tensor:
        """Return the auxiliary loss of the third and fourth layers at a random sample of positions."""
        starts = line_starts(tokens, self.ends)
        everywhere = torch.ones_like(tokens, dtype=torch.bool).nonzero(as_tuple=True)
        total = torch.zeros(())
        if len(states) < 4:
            return total
        hinted = ((2, *everywhere, starts[everywhere]), (3, *recalled(tokens, starts, self.words)))
        for (layer, row, at, wanted), matrix, weight in zip(hinted, self.matrices, self.WEIGHTS, strict=True):
            some = torch.randperm(len(row))[: self.NUM_SAMPLED]
            if len(some):
                state = F.rms_norm(states[layer][row[some], at[some]], (CONFIG["hidden_size"],))
                total = total + weight * F.cross_entropy(state @ matrix @ embedding.T, wanted[some])
        return total


def line_starts(tokens: Tensor, ends: Tensor) -> Tensor:
    """Return (batch, length): for each token, the first token of its line or sentence.

    ends: (vocabulary,) bool, the tokens that end a line or sentence.
    """
    is_start = torch.ones_like(tokens, dtype=torch.bool)
    is_start[:, 1:] = ends[tokens[:, :-1]]
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    return tokens.gather(1, torch.where(is_start, at, 0).cummax(1).values)


def recalled(tokens: Tensor, starts: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find words that occurred before in their row.

    Returns their rows, their columns, and the first token of the line or sentence where each first occurred.
    """
    length = tokens.shape[1]
    is_same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    first = torch.where(is_same, torch.arange(length), length).amin(2)
    row, at = ((first < length) & words[tokens]).nonzero(as_tuple=True)
    return row, at, starts[row, first[row, at]]
