"""ArcticInference's suffix decoding, as a rule to replay: draft the likeliest path of a suffix tree.

The tree counts what followed each n-gram of up to 64 tokens, in the request and in earlier answers. For every
length of match a path takes the most frequent next token, up to as many tokens as matched, while its
probability is at least .1. The path with the highest sum of probabilities is drafted. Here the tree is a list
of positions that is filtered token by token. Source: speculate() and _speculate_path() in
csrc/suffix_decoding/suffix_tree.cc, and arctic_inference/suffix_decoding/cache.py, by default.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart

MAX_DEPTH = 64
MIN_PROBABILITY = 0.1
_END = -1
"""Stands behind each text, and is never drafted."""

Ints = NDArray[np.int64]


class Texts:
    """Texts whose n-grams are counted. The last one may grow."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._tokens: Ints = np.full(len(tokens) + 1024, _END, np.int64)
        self._tokens[: len(tokens)] = tokens
        self._size = len(tokens)
        self._order = np.argsort(self._tokens[: self._size], kind="stable")
        self._sorted = self._tokens[self._order]
        self._later: dict[int, list[int]] = {}

    def append(self, token: int) -> None:
        """Append a token to the last text, or _END to begin a new one."""
        if self._size + 1 == len(self._tokens):
            self._tokens = np.append(self._tokens, np.full(len(self._tokens), _END, np.int64))
        self._tokens[self._size] = token
        self._later.setdefault(token, []).append(self._size)
        self._size += 1

    def speculate(self, context: Sequence[int], limit: int) -> tuple[list[int], float]:
        """Return the likeliest continuation of a text's end and its score, the sum of its probabilities."""
        low, high = np.searchsorted(self._sorted, (context[-1], context[-1] + 1))
        # Where the tokens after the match are.
        places = np.append(self._order[low:high], np.array(self._later.get(context[-1], ()), np.int64)) + 1
        best: tuple[list[int], float] = [], 0.0
        for length in range(1, min(len(context), MAX_DEPTH)):
            if length > 1:
                places = places[places >= length]
                places = places[self._tokens[places - length] == context[-length]]
            if not len(places):
                break
            path = self._path(places, min(limit, length, MAX_DEPTH - length))
            if path[1] >= best[1]:
                best = path
        return best

    def _path(self, places: Ints, limit: int) -> tuple[list[int], float]:
        path: list[int] = []
        probability, score = 1.0, 0.0
        while len(path) < limit:
            num_places, next_tokens = len(places), self._tokens[places]
            if num_places == 1:
                rest = self._tokens[places[0] : places[0] + limit - len(path)].tolist()
                rest = rest[: rest.index(_END)] if _END in rest else rest
                return path + rest, score + probability * len(rest)
            values, counts = np.unique(next_tokens[next_tokens != _END], return_counts=True)
            if not len(values):
                break
            at = int(counts.argmax())
            probability *= counts[at] / num_places
            if probability < MIN_PROBABILITY:
                break
            path.append(int(values[at]))
            score += probability
            places = places[next_tokens == values[at]] + 1
        return path, score


@dataclass
class SuffixTree:
    """Drafts from the request's own texts or those of earlier answers, whichever have the higher score."""

    name: str = "suffix-tree"
    answers: Texts = field(default_factory=Texts)
    own: dict[int, tuple[Texts, list[int]]] = field(default_factory=dict)

    def open(self, start: SequenceStart) -> None:
        """Count the prompt's n-grams."""
        self.own[start.seq] = Texts(start.prompt), list(start.prompt[-MAX_DEPTH:])

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the path with the higher score."""
        texts, context = self.own[query.seq]
        tokens, score = texts.speculate(context, query.limit)
        others = self.answers.speculate(context, query.limit)
        tokens = tokens if score >= others[1] else others[0]
        return Draft(tokens, self.name) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append committed tokens to the request's text and to the answers."""
        texts, context = self.own[seq]
        for token in tokens:
            texts.append(token)
            self.answers.append(token)
        context[:] = [*context, *tokens][-MAX_DEPTH:]

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the request's text, and end the answer."""
        del self.own[seq]
        self.answers.append(_END)

    def reset(self) -> None:
        """Forget earlier answers."""
        self.answers = Texts()
