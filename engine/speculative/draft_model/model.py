"""The draft model: it drafts for the target model's rows, token by token, with caches of its own.

Its rows are in the same order as the target's. A row is empty until the draft model has prefilled its text
(draft_prefill.py), in slices between the target's steps. It takes the text in its own ids, and its drafts are
translated into the target's (translation/). It samples with the target's settings and the noise that the
target will use at the same position. So the two agree at temperature as often as their distributions allow.
Whatever it drafts, the answer stays the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import mlx.core as mx
import numpy as np

from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import is_recurrent, leaves
from reprise.engine.kv_cache.per_row import make_caches as make_row_caches
from reprise.engine.kv_cache.rows import make_rows
from reprise.engine.kv_cache.sliding_window import ROLLBACK_TOKENS
from reprise.engine.model.loading import LoadedModel
from reprise.engine.sampling.logits import keep_likely
from reprise.engine.sampling.sampler import Draw, Sampler, noise_key
from reprise.engine.speculative.acceptance import count_accepted
from reprise.engine.speculative.draft_model.draft_prefill import DraftPrefill, DraftPrefixes, GiveUp
from reprise.engine.speculative.draft_model.forecast import DraftWork
from reprise.engine.speculative.translation import UNMATCHED, Translation, VocabularyPair
from reprise.engine.speculative.verify import RowInput

POSITIONS_PER_TOKEN = 2
"""Positions of the target with noise, per drafted token; after them the last position's noise is reused."""

DrawNext = Callable[[mx.array], mx.array]
"""(rows, any size) logits of the draft model -> (rows,) its ids, unevaluated. Each call draws one token."""


MakeDraw = Callable[[Sampler, Sequence[int], int], DrawNext]
"""Makes the function that draws the next tokens of all rows. It gets the target's sampler for the same rows,
the positions (rows,) of the target's next tokens, and how many tokens will be drawn."""


def make_draft_sampling(translation: Translation) -> MakeDraw:
    """Return the sampling of drafts for this translation between vocabularies."""
    if translation.pair is None:
        return partial(draw_as_target, translation.num_target_ids)
    if translation.strategy == "shared":
        return _make_shared_sampling(translation.pair)
    return FullVocabularySampling(translation.pair).make_draw


def draw_as_target(
    num_ids: int,
    sampler: Sampler,
    positions: Sequence[int],
    num_tokens: int,
    draws: Sequence[Draw] | None = None,
) -> DrawNext:
    """Sample for equal vocabularies of num_ids tokens, by the target's sampler. The rest: see MakeDraw.

    draws: (positions,) the row of each; None for one draw per row.
    """
    ahead = iter(range(num_tokens))

    def draw(logits: mx.array) -> mx.array:
        at = next(ahead)
        return sampler.sample(_resize(logits, num_ids), [position + at for position in positions], draws)

    return draw


def _make_shared_sampling(pair: VocabularyPair) -> MakeDraw:
    """Sample shared tokens only: the target's sampler draws among those, in the target's ids."""
    is_shared = mx.array(pair.token_map.to_draft != UNMATCHED)
    to_draft = mx.array(np.maximum(pair.token_map.to_draft, 0))

    def make_draw(sampler: Sampler, positions: Sequence[int], num_tokens: int) -> DrawNext:
        draw_target = draw_as_target(to_draft.size, sampler, positions, num_tokens)

        def draw(logits: mx.array) -> mx.array:
            target_logits = _resize(logits, pair.draft.size)[:, to_draft].astype(mx.float32)
            return to_draft[draw_target(mx.where(is_shared, target_logits, -mx.inf))]

        return draw

    return make_draw


class FullVocabularySampling:
    """Samples from all of the draft model's tokens. Shared tokens get the target's bias, penalties and noise.

    The noise is that of the token's expected position in the target's text. For this position, each token
    drafted before it counts as the number of target tokens that its text takes alone.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        to_target = pair.token_map.to_target
        self._num_ids = pair.draft.size
        self._to_target = mx.array(np.maximum(to_target, 0))
        self._is_shared = mx.array(to_target != UNMATCHED)
        self._lengths = mx.array(_count_target_tokens(pair))

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> DrawNext:
        """Make the function that draws the next tokens; see MakeDraw."""
        adjust = self._make_adjust(sampler)
        if not sampler.random:
            return lambda logits: mx.argmax(adjust(_resize(logits, self._num_ids)), axis=-1)
        window = POSITIONS_PER_TOKEN * num_tokens
        target_keys, own_keys = (
            mx.array(
                [
                    [noise_key(salt ^ seed, position + at) for at in range(window)]
                    for seed, position in zip(sampler.seeds, positions, strict=True)
                ],
                mx.uint32,
            )
            for salt in (0, _OWN_SALT)
        )
        ahead = mx.zeros(len(positions), mx.int32)

        def draw(logits: mx.array) -> mx.array:
            nonlocal ahead
            logits = adjust(_resize(logits, self._num_ids)) / sampler.temperatures
            if any(sampler.filtered):
                logits = keep_likely(logits, sampler.settings)
            at = mx.minimum(ahead, window - 1)[:, None, None]
            target_noise, own_noise = (
                mx.vmap(lambda key, size=size: mx.random.gumbel((size,), key=key))(
                    mx.take_along_axis(keys, at, axis=1)[:, 0]
                )
                for keys, size in ((target_keys, sampler.vocab_size), (own_keys, self._num_ids))
            )
            noise = mx.where(self._is_shared, target_noise[:, self._to_target], own_noise)
            drawn = mx.argmax(logits + mx.where(sampler.noisy, noise, 0), axis=-1)
            ahead = ahead + self._lengths[drawn]
            return drawn

        return draw

    def _make_adjust(self, sampler: Sampler) -> Callable[[mx.array], mx.array]:
        """Return a function that applies the requests' bias and penalties to the logits of shared tokens."""
        bias, penalties = None, None
        if any(one is not None for one in sampler.bias):
            none = mx.zeros(sampler.vocab_size)
            dense = mx.stack([none if one is None else one for one in sampler.bias])
            bias = mx.where(self._is_shared, dense[:, self._to_target], 0)
        if any(sampler.penalties):
            penalties = [p and p.remapped(self._to_target, self._is_shared) for p in sampler.penalties]

        def adjust(logits: mx.array) -> mx.array:
            logits = logits.astype(mx.float32)
            if penalties:
                pairs = zip(penalties, logits, strict=True)
                logits = mx.stack([penalty.apply(row) if penalty else row for penalty, row in pairs])
            return logits if bias is None else logits + bias

        return adjust


_OWN_SALT = 0x6A09E667F3BCC908
"""Separates the noise of tokens that only the draft model has from the target's noise."""


def _count_target_tokens(pair: VocabularyPair) -> np.ndarray:
    """Return (draft size,) int32: about how many target tokens each token's text takes alone."""
    counts = np.ones(pair.draft.size, np.int32)
    foreign = np.flatnonzero(pair.token_map.to_target == UNMATCHED)
    counts[foreign] = pair.target.estimate_lengths(pair.draft.pieces[token] for token in foreign.tolist())
    return np.maximum(counts, 1)


def _resize(logits: mx.array, num_ids: int) -> mx.array:
    """Cut or pad (rows, any size) logits to num_ids, since models pad their vocabularies."""
    missing = num_ids - logits.shape[-1]
    if missing > 0:
        return mx.pad(logits.astype(mx.float32), [(0, 0), (0, missing)], constant_values=float("-inf"))
    return logits[:, :num_ids]


T = TypeVar("T")

MAX_BACKLOG_TOKENS = 64
"""Maximum settled ids to feed a row in one forward pass."""

MAX_FEEDS = 8
"""Maximum forward passes to feed rows what they lack in one step. A row that lacks more goes on in the next
step, without a draft."""

PADDING_ID = 0
"""Fed to rows that need nothing, since every row takes part in a forward; rolled back afterward."""


@dataclass
class DraftRow:
    """The state of one row.

    prefill: None if nothing is drafted for the row.
    num_held: leading ids of the text that the caches hold. drafted: ids that the caches hold after those.
    floor: the minimum length to which the row can be rolled back.
    """

    prefill: DraftPrefill | None
    num_held: int = 0
    drafted: Sequence[int] = ()
    floor: int = 0


@dataclass
class CatchUpInput:
    """The ids that one row is fed before its draft.

    num_held: number of leading ids that the caches hold before this input. ids: the ids to feed.
    num_lacking: ids that the row still lacks after this input, or that must be fed again.
    floor: the minimum length to which the row can be rolled back after this input.
    num_unsettled: number of the text's ids that may still change.
    is_ready: whether tokens drafted after this input continue the committed text.
    """

    num_held: int
    ids: Sequence[int] = ()
    floor: int = 0
    num_lacking: int = 0
    num_unsettled: int = 0
    is_ready: bool = False


def _count_fed(passes: Sequence[CatchUpInput]) -> int:
    """Count the ids fed to a row until it was ready: in each later pass it is fed some of them again."""
    ready = next((at for at, one in enumerate(passes) if one.is_ready), len(passes))
    return sum(len(one.ids) for one in passes[: ready + 1])


class DraftModel:
    """The draft model and its rows, which the worker keeps in the order of the target's rows.

    Raises ModelError if its caches cannot be rolled back.
    """

    def __init__(self, loaded: LoadedModel, translation: Translation) -> None:
        self.sharing = loaded.find_sharing()
        if fault := loaded.rollback_fault(None, self.sharing):
            raise ModelError(f"the model {loaded.info.name} cannot draft: {fault}")
        self.loaded = loaded
        self.model = loaded.model
        self.translation = translation
        self._is_recurrent = any(is_recurrent(cache) for cache in leaves(make_row_caches(loaded.model)))
        self._make_draw = make_draft_sampling(translation)
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = make_rows(self.model, self.sharing)
        self._rows: list[DraftRow] = []

    def cost_share(self, target: LoadedModel) -> float:
        """Return a drafted token's cost as a share of a target's step, by the bytes of weights read."""
        return self.loaded.info.weight_bytes / max(1, target.info.weight_bytes)

    def make_prefill(self, num_tokens: int, give_up: GiveUp, opening: int = 0) -> DraftPrefill | None:
        """Make a new sequence's draft prefill; None if num_tokens tokens are certainly too many.

        give_up: called if the draft model cannot continue. opening: see DraftPrefill.
        """
        limit = self.loaded.info.context_tokens
        if self.translation.pair is None and num_tokens >= limit:
            return None
        return DraftPrefill(self.translation.make_translator(), limit, give_up, opening)

    def add(self, prefill: DraftPrefill | None) -> None:
        """Add an empty row at the end. prefill: its draft prefill; None to draft nothing for the row."""
        self.rows.add(make_row_caches(self.model), 0)
        self._rows.append(DraftRow(prefill))

    def awaiting_prefill(self) -> list[tuple[int, DraftPrefill]]:
        """Return the index and the draft prefill of each row whose draft prefill is not complete."""
        prefills = [(row, s.prefill) for row, s in enumerate(self._rows) if s.prefill]
        return [(row, prefill) for row, prefill in prefills if not prefill.is_ready]

    def start_drafting(self, row: int) -> None:
        """Give a row the caches of its complete draft prefill, so that it may draft."""
        prefill = self._rows[row].prefill
        assert prefill is not None
        num_held = prefill.num_computed
        self.rows.fill(row, prefill.release_caches(), num_held)
        self._rows[row] = DraftRow(prefill, num_held, floor=num_held)

    def drop_prefill(self, row: int) -> None:
        """Draft nothing more for a row."""
        self._rows[row].prefill = None

    def keep_row(self, row: int, tokens: Sequence[int], prefixes: DraftPrefixes) -> None:
        """Store the settled and computed part of a row's text as a prefix, before the row is removed.

        tokens: all committed tokens of the row.
        """
        state = self._rows[row]
        if state.prefill and state.prefill.is_ready:
            num_held = self.rows.roll_back(row, state.floor)
            prefixes.keep_row(state.prefill.ids[:num_held], row, self.rows)
        elif state.prefill:
            prefixes.keep(state.prefill, tokens)

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        self.rows.remove(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def fill_in(
        self, inputs: list[RowInput], committed: Sequence[Sequence[int]], sampler: Sampler
    ) -> DraftWork | None:
        """Draft the tokens that the inputs want. A row that lacks too many tokens only catches up.

        inputs: one for each row; those with new drafts are replaced. committed: all tokens of each row.
        sampler: the target's, for the same rows.
        Returns the work done, None if no input wants a draft.
        """
        num_to_draft = max(row_input.num_to_draft for row_input in inputs)
        if not num_to_draft:
            return None
        positions = [len(tokens) for tokens in committed]
        catch_ups = self._prepare_rows(inputs, committed, num_to_draft)
        passes = [catch_ups]
        for _ in range(MAX_FEEDS - 1):
            wanting = [one for one, of in zip(catch_ups, inputs, strict=True) if of.num_wanted]
            if not any(one.ids and not one.is_ready for one in wanting):
                break
            self._draft(catch_ups, positions, 0, sampler)
            catch_ups = self._prepare_rows(inputs, committed, num_to_draft)
            passes.append(catch_ups)
        num_fed = sum(max(len(one.ids) for one in of_rows) for of_rows in passes)
        # Tokens drafted for a row that still lacks text are useless.
        num_to_draft = num_to_draft if any(catch_up.is_ready for catch_up in catch_ups) else 0
        num_to_draft = min(
            num_to_draft, ROLLBACK_TOKENS - max(catch_up.num_unsettled for catch_up in catch_ups)
        )
        drafts = self._draft(catch_ups, positions, num_to_draft, sampler)
        translated: list[tuple[int, int] | None] = [None] * len(inputs)
        for row, (row_input, catch_up, drafted) in enumerate(zip(inputs, catch_ups, drafts, strict=True)):
            if catch_up.is_ready:
                found = self._translate_draft(row, drafted)
                draft, translated[row] = found[: row_input.num_wanted], (len(drafted), len(found))
                inputs[row] = replace(row_input, draft=draft, source=replace(row_input.source, tokens=draft))
        lacking = [one.num_lacking for one in catch_ups]
        fed = [_count_fed(of_row) for of_row in zip(*passes, strict=True)]
        return DraftWork(num_fed, num_to_draft, lacking, translated, fed)

    def _prepare_rows(
        self, inputs: Sequence[RowInput], committed: Sequence[Sequence[int]], num_ahead: int
    ) -> "list[CatchUpInput]":
        return [
            self._prepare_row(row, tokens, num_ahead, row_input.num_wanted > 0)
            for row, (row_input, tokens) in enumerate(zip(inputs, committed, strict=True))
        ]

    def _prepare_row(self, row: int, tokens: Sequence[int], num_ahead: int, is_wanted: bool) -> CatchUpInput:
        """Translate a row's new tokens, and roll its caches back to where they still match the text.

        num_ahead: tokens that will be drafted. is_wanted: whether this row wants them.
        """
        state = self._rows[row]
        num_same = self._or_give_up(row, lambda prefill: prefill.translate(tokens, num_ahead), 0)
        if state.prefill is None or not state.prefill.is_ready:
            return self._feed_nothing(row, state.num_held)
        ids, num_settled = state.prefill.ids, state.prefill.num_settled
        if num_same < state.num_held:
            num_correct = num_same
        else:
            after_held = ids[state.num_held : state.num_held + len(state.drafted)]
            num_correct = state.num_held + count_accepted(state.drafted, after_held)
        if self._is_recurrent:
            # Feed from the settled ids on, because recurrent state must later be rolled back to there.
            num_correct = min(num_correct, num_settled)
        # At least one id must be fed, for its logits.
        num_correct = min(num_correct, len(ids) - 1)
        if num_correct < state.floor:
            return self._feed_nothing(row, state.floor)
        num_held = self.rows.roll_back(row, num_correct)
        num_unsettled = len(ids) - num_settled
        end = num_held + 1
        if is_wanted:
            is_near = num_settled - num_held <= MAX_BACKLOG_TOKENS
            end = len(ids) if is_near else num_held + MAX_BACKLOG_TOKENS
        return CatchUpInput(
            num_held,
            ids[num_held:end],
            floor=max(state.floor, min(num_settled, end)),
            num_lacking=len(ids) - end + (num_unsettled if self._is_recurrent else 0),
            num_unsettled=num_unsettled,
            is_ready=is_wanted and end == len(ids),
        )

    def _feed_nothing(self, row: int, length: int) -> CatchUpInput:
        """Roll a row back to length, and return an empty input for it."""
        num_held = self.rows.roll_back(row, length)
        return CatchUpInput(num_held, floor=num_held)

    def _translate_draft(self, row: int, drafted: Sequence[int]) -> list[int]:
        return self._or_give_up(row, lambda prefill: prefill.translator.translate_draft(drafted), [])

    def _or_give_up(self, row: int, translate: Callable[[DraftPrefill], T], otherwise: T) -> T:
        """Translate a ready row's text. If that raises, the row gets no more drafts."""
        state = self._rows[row]
        if state.prefill is None or not state.prefill.is_ready:
            return otherwise
        try:
            return translate(state.prefill)
        # A fault in drafting must not fail the request.
        except Exception as fault:
            state.prefill.give_up(fault)
            state.prefill = None
            return otherwise

    def _draft(
        self, catch_ups: Sequence[CatchUpInput], positions: Sequence[int], num_tokens: int, sampler: Sampler
    ) -> list[list[int]]:
        """Feed the rows, then draft num_tokens (perhaps 0) for each row and return them. Waits once."""
        fed = [catch_up.ids or [PADDING_ID] for catch_up in catch_ups]
        logits = self.rows.forward_ragged(fed)
        ends = mx.array([len(ids) - 1 for ids in fed])
        last = mx.take_along_axis(logits, ends[:, None, None], axis=1)[:, 0]
        drawn: list[mx.array] = []
        draw = self._make_draw(sampler, positions, num_tokens)
        for at in range(num_tokens):
            if at:
                last = self.rows.forward(drawn[-1][:, None], keeps_state=True)[:, -1]
            drawn.append(draw(last))
        if drawn:
            drafts: list[list[int]] = mx.stack(drawn, axis=1).tolist()  # type: ignore[assignment]
        else:
            mx.eval(last)
            drafts = [[] for _ in fed]
        for state, catch_up, drafted in zip(self._rows, catch_ups, drafts, strict=True):
            state.num_held, state.floor = catch_up.num_held + len(catch_up.ids), catch_up.floor
            # The last drafted token was not fed.
            state.drafted = drafted[:-1] if catch_up.ids else ()
        return drafts
