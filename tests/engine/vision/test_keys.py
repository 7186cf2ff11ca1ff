"""Keys tell pictures apart, and nothing is cut within one."""

from dataclasses import replace

import pytest

from reprise.config.settings import Settings
from reprise.drafters.base import Draft
from reprise.engine.interface.request import DraftChoice
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.speculative.gate import decide
from reprise.engine.vision.image_features import find_delta, find_places
from reprise.engine.vision.keys import (
    chunk_end,
    prompt_keys,
    whole_images,
    without_cut_images,
    without_images,
)
from tests.engine.vision.seeing import BREAK, PLACEHOLDER, Picture, RandomTower, looked_at

ASKED = looked_at([1, 2], Picture(1, 2, 3), [3], Picture(2, 2, 2), [4], breaks=True)
KEYS = prompt_keys(ASKED.prompt, ASKED.images, 4096)


def test_only_placeholders_become_ids_beyond_the_vocabulary() -> None:
    for token, key in zip(ASKED.prompt, KEYS, strict=True):
        assert 4096 <= key < 2**31 if token == PLACEHOLDER else key == token
    assert KEYS.count(BREAK) == 2


def test_the_same_picture_has_the_same_keys_anywhere_and_another_none_of_them() -> None:
    (first, other), moved = ASKED.images, looked_at(Picture(1, 2, 3), [9], breaks=True)
    assert prompt_keys(moved.prompt, moved.images, 4096)[:7] == KEYS[first.start : first.end]
    assert not set(KEYS[first.start : first.end]) & set(KEYS[other.start : other.end]) - {BREAK}


@pytest.mark.parametrize("length", range(len(ASKED.prompt) + 1))
def test_a_match_never_ends_in_a_picture(length: int) -> None:
    def match(text: TextKey) -> int:
        return min(length, len(text) - 1)

    found = match(without_cut_images(ASKED.images, TextKey.of(KEYS), match))
    assert found == whole_images(ASKED.images, min(length, len(KEYS) - 1))
    assert not any(image.start < found < image.end for image in ASKED.images)


def test_a_chunk_ends_before_a_picture_or_behind_it() -> None:
    first, second = ASKED.images
    assert chunk_end(ASKED.images, 0, first.start + 1) == first.start
    assert chunk_end(ASKED.images, first.start, first.start + 1) == first.end
    assert chunk_end(ASKED.images, 0, second.start + 1) == second.start
    assert chunk_end(ASKED.images, 0, first.end) == first.end


@pytest.mark.parametrize(("tokens", "kept"), [([1, 2], [1, 2]), ([1, 4096, 2], [1]), ([2**31 - 1], [])])
def test_a_draft_ends_before_a_picture(tokens: list[int], kept: list[int]) -> None:
    assert without_images(Draft(tokens, "suffix"), 4096).tokens == kept


def test_text_after_pictures_is_behind_its_index_by_a_delta() -> None:
    tower = RandomTower(8, has_axes=True)
    asked = looked_at([1, 2], Picture(1, 2, 3), [3], Picture(2, 4, 2), [4, 5])
    places = find_places(asked.images, tower.positions, 0, len(asked.prompt))
    assert places[:, -1].tolist() == [11, 11, 11]
    assert find_delta(asked.images, tower.positions) == 11 - (len(asked.prompt) - 1)
    assert places[1, 2:8].tolist() == [2, 2, 2, 3, 3, 3]
    assert places[2, 9:17].tolist() == [6, 7, 6, 7, 6, 7, 6, 7]
    for start, end in ((0, 4), (4, 12), (9, 19)):
        part = find_places(asked.images, tower.positions, start, end)
        assert part.tolist() == places[:, start:end].tolist()


@pytest.mark.parametrize("draft_type", ["auto", "draft-model", "none"])
def test_a_draft_model_is_declined_by_name(draft_type: str) -> None:
    asked = replace(ASKED, prediction=(1, 2), draft=DraftChoice(draft_type))  # type: ignore[arg-type]
    decision = decide(asked, Settings(draft_model="x"), "draft-model", score=1.0)
    assert "draft-model" not in decision.drafters
    assert draft_type == "none" or "draft-model drafts no answers about images" in decision.reason
    assert draft_type == "none" or decision.drafters[0] == "prediction"
