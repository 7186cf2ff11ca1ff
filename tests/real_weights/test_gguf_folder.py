"""Tokenizers that are built from a GGUF file are the models' own."""

from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer

from tests.real_weights.packages import FETCHED_WITHIN_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FETCHED_WITHIN_S + 60)]

TEXT = "Répète: œuvre 1234,\r\n\n\t\tif a  ==  b:" + 40 * " " + "return '€ 😀'  "
GEMMA3_IDS = [
    236794, 15057, 31002, 236787, 81693, 236743, 236770, 236778, 236800, 236812, 236764, 251, 108, 255969,
    584, 496, 138, 1224, 138, 236763, 236787, 167, 145, 2060, 756, 237762, 163543, 236789, 138,
]  # fmt: skip
"""What Google's own tokenizer.json makes of TEXT."""


@pytest.fixture(params=["smollm2_folder", "gemma3_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_text_comes_back_unchanged(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False)) == TEXT


def test_gemmas_ids_are_those_of_its_own_tokenizer(gemma3_folder: Path) -> None:
    tokenizer = load_tokenizer(gemma3_folder)
    assert tokenizer.encode(TEXT) == [tokenizer.bos_token_id, *GEMMA3_IDS]
