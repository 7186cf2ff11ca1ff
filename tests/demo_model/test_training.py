"""Each kind of bundled model still trains: ten steps on from its bundled weights, a resumption, an export.

They need torch, which no lock of this project has (the `train` extra): without it they are skipped.
"""

from pathlib import Path

import pytest
from safetensors import safe_open

from reprise.config.model_settings import BUNDLED_MODEL

pytest.importorskip("torch")

NUM_STEPS = 10
# Size -> its bundled folder, what it reports of a batch, and the least of it over ten steps.
KINDS = {
    "demo": (BUNDLED_MODEL, "right tokens", 0.97),
    "draft": (BUNDLED_MODEL / "draft", "right tokens", 0.8),
    "polish": (BUNDLED_MODEL / "draft_polish", "right tokens", 0.8),
    "wedlm": (BUNDLED_MODEL / "wedlm", "right masks", 0.6),
    "mtp": (BUNDLED_MODEL / "mtp", "right drafts", 2.0),
    "eagle3": (BUNDLED_MODEL / "eagle3", "right drafts", 2.5),
    "dflash": (BUNDLED_MODEL / "dflash", "right drafts", 2.0),
}
WRITTEN = ("config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja")


def shapes(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Return the types and shapes of a folder's weights."""
    with safe_open(folder / "model.safetensors", "np") as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        return {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


@pytest.mark.parametrize("size", KINDS)
def test_it_trains_on_from_the_bundled_weights(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise.demo_model.training import demo, heads, wedlm
    from reprise.demo_model.training.train import Training, export

    for module in (demo, heads, wedlm):
        monkeypatch.setattr(module, "BATCH_TOKENS", 400)
    monkeypatch.setattr(heads, "POOL_SAMPLES", 8)
    bundled, figure, least = KINDS[size]
    training = Training(size, tmp_path / "work", 1000.0, start_from=bundled)
    training.seconds = 990 * 60.0
    reports = [training.update() for _ in range(NUM_STEPS)]
    assert sum(one[figure] for one in reports) / NUM_STEPS > least
    training.save()
    resumed = Training(size, tmp_path / "work", 1000.0)
    assert (resumed.step, resumed.seconds) == (NUM_STEPS, training.seconds)
    export(resumed.kind, tmp_path / "out")
    assert shapes(tmp_path / "out") == shapes(bundled)
    weights, old = ((folder / "model.safetensors").read_bytes() for folder in (tmp_path / "out", bundled))
    assert weights != old
    for name in WRITTEN:
        assert (bundled / name).exists() == (tmp_path / "out" / name).exists()
        if (bundled / name).exists():
            assert (tmp_path / "out" / name).read_text() == (bundled / name).read_text()
