"""After random joins, leaves, steps and rollbacks, the caches of all ranks hold the right bytes."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.machines.programs import run_program
from tests.tiny_models import write_random_model

# Several processes share two cores.
pytestmark = pytest.mark.timeout(900)

SEED = "1"


def run(folder: Path, model: Path, num_ranks: int, split: str, num: int) -> list[dict[str, Any]]:
    """Do random things on each rank; return what each wrote."""
    return run_program("random_run", folder, model, num_ranks, split, SEED, str(num))


def copies_of(leader: dict[str, Any], other: dict[str, Any]) -> list[list[str]]:
    """Return another rank's copies of what rank 0 held, in the same order."""
    # The shard, the rows, and these copies: it has dropped what rank 0 has dropped.
    assert other["num_objects"] == 2 + len(leader["numbers"])
    return [other["held"][str(number)] for number in leader["numbers"]]


def check_pipeline(folder: Path, name: str, num_ranks: int, num: int, sharing: str = "GROUPS") -> None:
    """Compare the caches of all layers, wherever they are, with those of one process, and all logits.

    sharing: what the rows of a batch share, on several as on one.
    """
    model = write_random_model(name, folder / name)
    leader, *others = run(folder, model, num_ranks, "pipeline", num)
    (one,) = run(folder, model, 1, "pipeline", num)
    assert min(one["done"].values()) > 0
    assert len(one["done"]) == 7
    assert sum(one["done"].values()) == num
    assert leader["sharing"] == one["sharing"] == sharing
    assert leader["logits"] == one["logits"]
    assert leader["lengths"] == one["lengths"]
    # Rank 0 has the last layers.
    parts = [*(copies_of(leader, other) for other in reversed(others)), leader["held"]]
    joined = [[*chain.from_iterable(of_one)] for of_one in zip(*parts, strict=True)]
    assert joined == one["held"]
    assert any(joined)


def test_caches_of_a_pipeline_of_three_are_those_of_one_process(tmp_path: Path) -> None:
    check_pipeline(tmp_path, "qwen2", num_ranks=3, num=80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sharing"), [("qwen2", "GROUPS"), ("qwen3_5", "GROUPS"), ("deepseek_v3", "LAYERS")]
)
def test_caches_of_a_pipeline_after_a_thousand_things_are_those_of_one_process(
    name: str, sharing: str, tmp_path: Path
) -> None:
    check_pipeline(tmp_path, name, num_ranks=2, num=1000, sharing=sharing)


@pytest.mark.slow
def test_caches_that_every_rank_of_a_tensor_split_has_are_the_same_after_a_thousand_things(
    tmp_path: Path,
) -> None:
    # Latent attention: what it caches is not divided by heads.
    model = write_random_model("deepseek_v3", tmp_path / "model")
    leader, other = run(tmp_path, model, 2, "tensor", 1000)
    assert copies_of(leader, other) == leader["held"]
    assert any(leader["held"])


@pytest.mark.slow
def test_caches_of_a_tensor_split_are_the_same_from_run_to_run(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    first = run(tmp_path, model, 2, "tensor", 300)
    assert first == run(tmp_path, model, 2, "tensor", 300)
    assert any(copies_of(*first))
