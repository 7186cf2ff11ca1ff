"""Rank with models that decode: yes or no is likelier to follow a fixed template with an empty thought.

Source: the model card of Qwen3-Reranker.
"""

from reprise.engine.embedding.decoder import Answers
from reprise.engine.interface.embeddings import EmbeddingInfo, Recipe
from reprise.engine.interface.errors import ModelError
from reprise.engine.text.tokenizer import Tokenizer

BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
PAIR = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>:"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


JUDGE = "qwen3"
"""Model type of Qwen3-Reranker."""


def describe_judge(tokenizer: Tokenizer) -> EmbeddingInfo:
    """Describe how the model rates pairs: the template's tokens stand around the text of a pair."""
    before, after = (tuple(tokenizer.encode_answer(text)) for text in (BEFORE, AFTER))
    return EmbeddingInfo(1, Recipe("last"), before=before, after=after, pair=PAIR, instruction=INSTRUCTION)


def find_answers(tokenizer: Tokenizer, told: tuple[int | None, int | None] | None) -> Answers:
    """Return the ids of the tokens yes and no. told: the ids that the model's folder names, if any.

    Raises ModelError if yes or no takes several tokens, or the folder names other ids.
    """
    yes, no = (tokenizer.encode_answer(word) for word in ("yes", "no"))
    if len(yes) != 1 or len(no) != 1:
        raise ModelError("it has no single tokens for yes and no, by which models that decode rank")
    if told not in (None, (yes[0], no[0])):
        raise ModelError(f"it ranks by the tokens {told}, not by yes and no after Qwen3-Reranker's template")
    return yes[0], no[0]
