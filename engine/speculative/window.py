"""Windowed decoding of a WeDLM model: several tokens of an answer are filled in at once, in any order.

    settled text                 window
    t0 .. tn | tn+1 .. tn+p |  h0  f1  h2  h3        f1: filled, h0 h2 h3: holes
    in cache     pending

A step feeds the pending tokens and the window, with the model's mask token at each hole. A token sees tokens
of no higher rank. Ranks go to settled tokens, then to filled ones, then to holes, each from left to right. So
settled tokens get the keys and values of a plain prefill. Then the holes that the model is sure of are
filled, tokens that no hole precedes are settled, and as many new holes are added. A filled hole is final.

Unlike drafts, this changes the answer: a token is chosen before those to its left are known.

Source: WeDLM (arXiv:2512.22737), algorithm 1. Here an attention mask sets what tokens see; there, tokens are
reordered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reprise.engine.interface.request import WindowSettings
from reprise.engine.kv_cache.columns import Ranks
from reprise.engine.sampling.grammar import Mask
from reprise.engine.sampling.logits import Likelihood
from reprise.engine.sampling.sampler import Draw
from reprise.engine.speculative.verify import Asked, Outcome, RowInput


@dataclass(frozen=True, slots=True)
class Filled:
    """A token that fills a hole. likelihood: its own when it was drawn; None if the request wants none."""

    token: int
    likelihood: Likelihood | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens and holes after one sequence's settled text.

    settings: the request's. places: the token at each position after that text, None for a hole. The first
        position is a hole, and so are all positions after the last place.
    """

    settings: WindowSettings
    places: tuple[Filled | None, ...] = ()

    def widen(self, size: int) -> "Window":
        """Return a copy of the window, extended with holes to `size` places."""
        return replace(self, places=(*self.places, *[None] * (size - len(self.places))))

    @property
    def tokens(self) -> list[int]:
        """The tokens to feed: the mask token at unfilled places."""
        return [place.token if place else self.settings.mask_token for place in self.places]

    @property
    def holes(self) -> list[int]:
        """The holes' indices in places."""
        return [at for at, place in enumerate(self.places) if place is None]

    def ranks(self, num_pending: int) -> list[int]:
        """Return each fed token's rank: num_pending pending tokens, then the window's."""
        ranks = list(range(num_pending))
        num_filled = len(self.places) - len(self.holes)
        next_filled, next_hole = num_pending, num_pending + num_filled
        for place in self.places:
            ranks.append(next_filled if place else next_hole)
            next_filled, next_hole = next_filled + bool(place), next_hole + (place is None)
        return ranks

    def draws(self, row: int, masks: Sequence[Mask | None]) -> list[Draw]:
        """Return a draw for each hole; penalties count the tokens filled in to its left.

        masks: the grammar's mask of the first hole; empty without a grammar.
        """
        draws, filled = [], []
        for at, place in enumerate(self.places):
            if place:
                filled.append(place.token)
            else:
                draws.append(Draw(row, tuple(filled), masks[0] if masks and at == 0 else None))
        return draws

    def logits_at(self, num_pending: int) -> list[int]:
        """Return, for each hole, the index among the fed tokens whose logits the hole is drawn from."""
        places = [num_pending + hole for hole in self.holes]
        if self.settings.has_anchor:
            # At a token that is no mask the model predicts the next one, as in plain decoding.
            places[0] = num_pending - 1
        return places

    def fill(
        self,
        tokens: Sequence[int],
        entropies: Sequence[float],
        likelihoods: Sequence[Likelihood | None],
    ) -> tuple[list[Filled], "Window"]:
        """Fill the surest holes; return the tokens settled now, perhaps none, and the window after them.

        tokens, entropies, likelihoods: (holes,) the token drawn for each hole, the entropy there in nats, and
            the draw's likelihood.
        """
        places = list(self.places)
        for at in self._sure(entropies):
            places[self.holes[at]] = Filled(tokens[at], likelihoods[at])
        num_settled = places.index(None) if None in places else len(places)
        settled = [place for place in places[:num_settled] if place]
        return settled, replace(self, places=tuple(places[num_settled:]))

    def _sure(self, entropies: Sequence[float]) -> list[int]:
        """Return which of the holes to fill: at least one."""
        settings, holes = self.settings, self.holes
        costs = [
            entropy + settings.pos_penalty_factor * (hole - holes[0])
            for entropy, hole in zip(entropies, holes, strict=True)
        ]
        limit = settings.entropy_threshold
        sure = [] if limit is None else [at for at, cost in enumerate(costs) if cost < limit]
        if settings.has_anchor:
            return sorted({0, *sure})
        return sure or [costs.index(min(costs))]


@dataclass(slots=True)
class WindowInput(RowInput):
    """A step's input for a row with a window: the text that its cache lacks, then the window.

    pending: the committed tokens that the cache lacks, the newest last.
    """

    window: Window = field(kw_only=True)
    pending: Sequence[int] = field(kw_only=True)

    @property
    def tokens(self) -> list[int]:
        """The tokens to feed."""
        return [*self.pending, *self.window.tokens]

    @property
    def ranks(self) -> Ranks | None:
        """The ranks of the tokens fed, by which they attend to each other."""
        return self.window.ranks(len(self.pending))

    @property
    def width(self) -> int:
        """Number of tokens fed."""
        return len(self.pending) + len(self.window.places)

    @property
    def least_width(self) -> int:
        """Number of tokens that the row would feed without drafting: all, as a window is no draft."""
        return self.width

    def ask(self, row: int, num_top: int | None) -> Asked:
        """Return a draw for each hole. num_top: GenerationRequest.top_logprobs."""
        places = self.window.logits_at(len(self.pending))
        return Asked(
            self.window.draws(row, self.masks),
            [self.position + hole for hole in self.window.holes],
            places,
            [num_top] * len(places),
            places,
        )

    def conclude(
        self, sampled: list[int], likelihoods: list[Likelihood | None], entropies: list[float]
    ) -> "WindowOutcome":
        """Conclude the row's step, which commits the tokens settled now.

        sampled, likelihoods: one for each hole. entropies: in nats, one for each hole.
        """
        settled, window = self.window.fill(sampled, entropies, likelihoods)
        tokens, found = [one.token for one in settled], [one.likelihood for one in settled]
        return WindowOutcome(self, tokens, found, len(self.pending) - (not tokens), window=window)


@dataclass(slots=True)
class WindowOutcome(Outcome):
    """A step's result for a row with a window. window: after the committed tokens."""

    window: Window = field(kw_only=True)
