"""A conversation's images are in its prompt where the model's own processor has them."""

import json
from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.images import mark
from reprise.engine.model.files.image_processor import count_tokens, read_vision
from reprise.engine.text.tokenizer import Tokenizer
from tests.engine.vision.tiny_towers import LFM2_TOKENS

QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
GEMMA = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
GEMMA4 = ("<|image>", "<image|>", "<|image|>")
PIXTRAL = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
FIRST = 4096

HEAD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
)
TAIL = "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PARTS = (
    "{%% for p in m.content %%}{%% if p.type == 'image' %%}%s{%% else %%}{{ p.text }}{%% endif %%}"
    "{%% endfor %%}"
)
TEXT_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content + '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(written):
    return HEAD + PARTS % written + TAIL


FAMILIES = {
    "qwen3_vl": (
        QWEN,
        template("<|vision_start|><|image_pad|><|vision_end|>"),
        {"model_type": "qwen3_vl", "image_token_id": FIRST + 2, "vision_config": {"patch_size": 16}},
        {"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "merge_size": 2},
        "<|vision_start|>*<|vision_end|>",
    ),
    "gemma3": (
        GEMMA,
        template("<start_of_image>"),
        {
            "model_type": "gemma3",
            "image_token_index": FIRST + 2,
            "boi_token_index": FIRST,
            "eoi_token_index": FIRST + 1,
            "mm_tokens_per_image": 256,
            "vision_config": {"patch_size": 14},
        },
        {"size": {"height": 896, "width": 896}, "resample": 2},
        "\n\n<start_of_image>*<end_of_image>\n\n",
    ),
    "mistral3": (
        PIXTRAL,
        template("[IMG]"),
        {
            "model_type": "mistral3",
            "image_token_index": FIRST,
            "spatial_merge_size": 2,
            "vision_config": {"patch_size": 14},
        },
        {"size": {"longest_edge": 1540}, "patch_size": 14},
        "*",
    ),
    "gemma4": (
        GEMMA4,
        template("<|image|>"),
        {
            "model_type": "gemma4",
            "image_token_id": FIRST + 2,
            "boi_token_id": FIRST,
            "eoi_token_id": FIRST + 1,
            "vision_config": {},
        },
        {"patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 280},
        "<|image>*<image|>",
    ),
    "lfm2_vl": (
        LFM2_TOKENS,
        template("<image>"),
        {"model_type": "lfm2_vl", "image_token_id": FIRST, "vision_config": {"patch_size": 16}},
        {"resample": 3, "use_thumbnail": True},
        "<|image_start|>*<|image_end|>",
    ),
}
EXAMPLE_TOKENS = {"qwen3_vl": 768, "gemma3": 256, "mistral3": 1064, "gemma4": 266, "lfm2_vl": 1770}


def make(folder: Path, family: str, chat_template: str | None = None):
    """Return a tokenizer with a family's tokens and template, and how it sees."""
    tokens, own, config, processor, _ = FAMILIES[family]
    bundled = Path(BUNDLED_MODEL)
    known = json.loads((bundled / "tokenizer.json").read_text())
    model = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    known["added_tokens"] += [{"id": FIRST + i, "content": one} | model for i, one in enumerate(tokens)]
    (folder / "tokenizer.json").write_text(json.dumps(known))
    for name in ("tokenizer_config.json", "config.json"):
        (folder / name).write_text((bundled / name).read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    wrapped = load_tokenizer(folder, {"chat_template": chat_template or own})
    tokenizer = Tokenizer(wrapped, FIRST + len(tokens))
    return tokenizer, read_vision(config, folder, tokenizer.backend)


def shown(tokenizer, vision, messages):
    """Return a rendered prompt with a star for each placeholder."""
    ids = tokenizer.render_chat(messages, processor=vision.processor)
    texts = ["*" if token == vision.placeholder else tokenizer.piece(token).decode() for token in ids]
    return "".join(texts)


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("template", ["own", "text-only"])
def test_an_image_stands_between_texts_as_its_family_has_it(tmp_path, family, template):
    tokenizer, vision = make(tmp_path, family, TEXT_ONLY if template == "text-only" else None)
    image = FAMILIES[family][-1]
    messages = [user(f"One {mark(0)} or{mark(1)}"), {"role": "assistant", "content": "a"}, user(mark(2))]
    assert shown(tokenizer, vision, messages) == (
        f"<|im_start|>user\nOne {image} or{image}<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        f"<|im_start|>user\n{image}<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_spells_an_images_tokens_shows_none(tmp_path, family):
    tokenizer, vision = make(tmp_path, family)
    spelled = "".join(FAMILIES[family][0])
    messages = [user(f"{spelled} {mark(0)}"), {"role": "assistant", "content": spelled}, user(spelled)]
    text = shown(tokenizer, vision, messages)
    assert text.count("*") == 1
    assert text.count(spelled) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_people_are_told_what_an_image_takes(tmp_path, family):
    _, vision = make(tmp_path, family)
    assert vision.example_tokens == EXAMPLE_TOKENS[family]
    assert vision.min_tokens <= vision.example_tokens <= vision.max_tokens
    assert count_tokens(vision.processor, (768, 1024), budget=300) <= max(300, vision.min_tokens)


def test_the_tower_sees_no_more_than_a_tile_at_once(tmp_path):
    _, vision = make(tmp_path, "lfm2_vl")
    assert (vision.max_tokens, vision.part_tokens) == (11 * 256, 256)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_its_processor_sees_nothing(tmp_path, family):
    tokenizer, _ = make(tmp_path, family)
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_vision(FAMILIES[family][2], tmp_path, tokenizer.backend) is None
