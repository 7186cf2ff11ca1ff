"""The bundled WeDLM checkpoint is the demo model with one more token, and mlx-lm loads it as a Llama."""

import json

import mlx.core as mx
import mlx_lm
from mlx_lm.utils import load_tokenizer

from reprise.bench.local_engine import LocalEngine
from reprise.bench.workloads import make_chats
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.interface.request import DraftChoice, DraftType
from reprise.engine.speculative.costs.step_costs import StepCosts

WEDLM = BUNDLED_MODEL / "wedlm"
KINDS: tuple[DraftType, DraftType] = ("none", "wedlm")


def test_mlx_lm_loads_it_without_remote_code() -> None:
    config = json.loads((WEDLM / "config.json").read_text())
    assert (config["model_type"], config["attention_bias"], config["qk_norm"]) == ("wedlm", False, False)
    assert "auto_map" not in config
    model, _ = mlx_lm.load(str(WEDLM), model_config={"model_type": "llama"})[:2]
    logits = model(mx.array([[1, 2, config["mask_token_id"]]]))
    assert logits.shape == (1, 3, config["vocab_size"])
    assert mx.isfinite(logits).all().item()


def test_its_weights_are_named_as_the_demo_models() -> None:
    shapes = {
        folder: {name: value.shape for name, value in mx.load(str(folder / "model.safetensors")).items()}
        for folder in (BUNDLED_MODEL, WEDLM)
    }
    rows, width = shapes[BUNDLED_MODEL].pop("model.embed_tokens.weight")
    assert shapes[WEDLM].pop("model.embed_tokens.weight") == (rows + 1, width)
    assert shapes[WEDLM] == shapes[BUNDLED_MODEL]


def test_its_tokenizer_adds_only_the_mask() -> None:
    mask = json.loads((WEDLM / "config.json").read_text())["mask_token_id"]
    plain, masked = (load_tokenizer(folder).get_vocab() for folder in (BUNDLED_MODEL, WEDLM))
    assert masked == plain | {"<|mask|>": mask}
    assert mask == len(plain)
    assert load_tokenizer(WEDLM).encode("<|mask|>", add_special_tokens=False) == [mask]


def test_it_uses_the_demo_models_template() -> None:
    name = "chat_template.jinja"
    assert (WEDLM / name).read_text() == (BUNDLED_MODEL / name).read_text()


def test_its_masks_draft_and_change_no_answer() -> None:
    settings = Settings(model=str(WEDLM), prefix_cache_bytes=0, draft_type="wedlm")
    with LocalEngine(settings, StepCosts({(1, 1): 1.0}, is_learned=False)) as local:
        chats = [
            chat
            for name in ("edits", "records", "quotes")
            for chat in make_chats(name, 1, 1, local.count_tokens)
        ]
        turns = [chat.turns[0] for chat in chats]
        plain, drafted = (local.answer(local.requests(turns, DraftChoice(kind), 96, 1)) for kind in KINDS)
    assert [end.tokens for end in drafted] == [end.tokens for end in plain]
    num_tokens = sum(len(end.tokens) for end in drafted)
    assert num_tokens > 1.3 * sum(end.usage.drafting.num_forwards for end in drafted)
