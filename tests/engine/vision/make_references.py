"""Write references/: what transformers' classes make of tiny random towers, and what they call the weights.

    python -m venv VENV
    VENV/bin/pip install torch torchvision transformers==5.23.0 safetensors pillow numpy
    VENV/bin/python tests/engine/vision/make_references.py [FAMILY ...]

Torch is not among the tests' packages: it takes gigabytes, and these files 100 KB.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from tiny_towers import (
    FAMILIES,
    GEMMA4_PROMPT,
    GEMMA4_TEXT,
    LFM2_PROMPT,
    LFM2_SIZES,
    LFM2_TINY,
    REFERENCES,
    Family,
    random_array,
    references,
)
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

PARTS = ("visual", "vision_tower", "multi_modal_projector", "embed_vision")


def is_of_tower(name: str) -> bool:
    return any(part in name.split(".") for part in PARTS)


def make_model(family: Family) -> torch.nn.Module:
    """Return the model of a family with random weights in its tower."""
    config = {key: value for key, value in family.config.items() if key != "model_type"}
    kind = family.config["model_type"]
    torch.manual_seed(0)
    config = CONFIG_MAPPING[PUBLISHED_AS.get(kind, kind)](**config)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, array in model.state_dict().items():
            if is_of_tower(name):
                array.copy_(torch.from_numpy(random_array(name, tuple(array.shape))))
    return model


def published_names(model: torch.nn.Module) -> dict[str, list[object]]:
    """Return the names that a saved file has, and what each is called in the model, with its shape."""
    own = {name: array.numpy() for name, array in model.state_dict().items() if is_of_tower(name)}
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for file in Path(folder).glob("*.safetensors"):
            for name, saved in load_file(file).items():
                if is_of_tower(name):
                    same = (
                        name if name in own else next(k for k, v in own.items() if np.array_equal(v, saved))
                    )
                    told[name] = [same, list(saved.shape)]
    assert {same for same, _ in told.values()} == set(own), "an array of the tower was not saved"
    return told


def normal(pixels: np.ndarray, family: Family) -> torch.Tensor:
    """Return normalised pixels (height, width, 3)."""
    told = family.processor
    scaled = pixels.astype(np.float32) * np.float32(told["rescale_factor"])
    return torch.from_numpy((scaled - np.float32(told["image_mean"])) / np.float32(told["image_std"]))


def qwen(model: torch.nn.Module, family: Family, image: np.ndarray, grid: tuple[int, int]) -> tuple:
    """Return bytes in the order of Qwen's processor, and the features of an image."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    vision = family.config["vision_config"]
    sizes = {"patch_size": vision["patch_size"], "merge_size": vision["spatial_merge_size"]}
    sizes["size"] = {"shortest_edge": 16, "longest_edge": 10**6}
    processor = Qwen2VLImageProcessorPil(**sizes, **family.processor)
    given = processor(image, return_tensors="pt")
    assert given["image_grid_thw"].tolist() == [[1, *grid]]
    plain = processor(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    out = model.model.get_image_features(given["pixel_values"], given["image_grid_thw"], return_dict=True)
    deep = getattr(out, "deepstack_features", None) or []
    return (
        plain,
        out.pooler_output[0],
        [torch.cat(list(part)) if isinstance(part, tuple) else part for part in deep],
    )


def gemma3(model: torch.nn.Module, family: Family, image: np.ndarray, _grid: tuple[int, int]) -> tuple:
    """Return an image with its channels first, and its features."""
    out = model.model.get_image_features(normal(image, family).permute(2, 0, 1)[None], return_dict=True)
    return image.transpose(2, 0, 1), out.pooler_output[0], []


def pixtral(model: torch.nn.Module, family: Family, image: np.ndarray, _grid: tuple[int, int]) -> tuple:
    """Return an image with its channels first, and its features."""
    sizes = torch.tensor([image.shape[:2]])
    given = normal(image, family).permute(2, 0, 1)[None]
    out = model.model.get_image_features(given, image_sizes=sizes, return_dict=True)
    return image.transpose(2, 0, 1), out.pooler_output[0], []


def gemma4(model: torch.nn.Module, family: Family, image: np.ndarray, grid: tuple[int, int]) -> tuple:
    """Return patches as Gemma 4's processor cuts them, and the features of an image."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import convert_image_to_patches

    side = family.config["vision_config"]["patch_size"]
    patches = convert_image_to_patches(image.transpose(2, 0, 1), side)
    columns, rows = np.meshgrid(np.arange(grid[1]), np.arange(grid[0]))
    places = torch.from_numpy(np.stack([columns, rows], axis=-1).reshape(1, -1, 2))
    given = torch.from_numpy(patches.astype(np.float32) / 255)[None]
    out = model.model.get_image_features(given, places, return_dict=True)
    return patches, out.pooler_output[0], []


def lfm2_vl(model: torch.nn.Module, family: Family, image: np.ndarray, grid: tuple[int, int]) -> tuple:
    """Return patches as LFM2-VL's processor cuts them, and the features of an image beside a larger one."""
    from transformers.models.siglip2.image_processing_pil_siglip2 import convert_image_to_patches

    side = family.config["vision_config"]["patch_size"]
    patches = convert_image_to_patches(image.transpose(2, 0, 1), side)
    given = convert_image_to_patches(normal(image, family).permute(2, 0, 1).numpy(), side)
    given = torch.nn.functional.pad(torch.from_numpy(given)[None], (0, 0, 0, 7))
    # Patches that are not there, as beside a larger image.
    mask = torch.cat([torch.ones(1, len(patches)), torch.zeros(1, 7)], dim=1).int()
    out = model.model.get_image_features(given, torch.tensor([grid]), mask, return_dict=True)
    return patches, out.pooler_output[0], []


def make_whole(model_type: str, parts: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a model with random weights, and what tests need to make it too: its configuration and names."""
    config = CONFIG_MAPPING[model_type](**parts)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    shapes = {}
    with torch.no_grad():
        for name, array in model.state_dict().items():
            shapes[name] = list(array.shape)
            if name != "lm_head.weight":
                array.copy_(torch.from_numpy(random_array(name, tuple(array.shape))))
    return model, {"config": config.to_dict(), "shapes": shapes}


def write_whole(name: str, made: tuple[torch.nn.Module, dict[str, Any]], **given: torch.Tensor) -> None:
    """Write the configuration, the names and the logits of a whole model that reads text with images."""
    model, told = made
    with torch.no_grad():
        logits = model(**given).logits[0].numpy()
    file = REFERENCES / f"{name}.json"
    file.write_text(json.dumps(told, indent=0, default=str) + "\n")
    np.savez_compressed(file.with_suffix(".npz"), logits=logits)


def write_whole_gemma4(attention: str | None) -> None:
    family = FAMILIES["gemma4"]
    parts = {key: value for key, value in family.config.items() if key != "model_type"}
    parts["text_config"] = parts["text_config"] | GEMMA4_TEXT | {"use_bidirectional_attention": attention}
    image = np.load(REFERENCES / "gemma4.npz")["0.pixels"]
    grid = family.grids[0]
    columns, rows = np.meshgrid(np.arange(grid[1]), np.arange(grid[0]))
    places = torch.from_numpy(np.stack([columns, rows], axis=-1).reshape(1, -1, 2))
    tokens = torch.tensor([GEMMA4_PROMPT])
    write_whole(
        f"gemma4_whole_{attention}",
        make_whole("gemma4", parts),
        input_ids=tokens,
        pixel_values=torch.from_numpy(image.astype(np.float32) / 255)[None],
        image_position_ids=places,
        mm_token_type_ids=(tokens == family.config["image_token_id"]).long(),
    )


def write_whole_lfm2() -> None:
    family = FAMILIES["lfm2_vl"]
    parts = {key: value for key, value in family.config.items() if key != "model_type"}
    tiles = [one.pixels.astype(np.float32) / 127.5 - 1 for one in references("lfm2_vl")]
    most = max(map(len, tiles))
    write_whole(
        "lfm2_vl_whole",
        make_whole("lfm2_vl", parts),
        input_ids=torch.tensor([LFM2_PROMPT]),
        pixel_values=torch.from_numpy(
            np.stack([np.pad(one, ((0, most - len(one)), (0, 0))) for one in tiles])
        ),
        pixel_attention_mask=torch.tensor([[at < len(one) for at in range(most)] for one in tiles]).int(),
        spatial_shapes=torch.tensor(family.grids),
    )


def write_tiles() -> None:
    """Write how LFM2-VL's processor cuts images of many sizes, and the patches of some small ones."""
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor

    processor = Lfm2VlImageProcessor()
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(8), np.log(4000), (400, 2))).astype(int).tolist()
    cuts = []
    for height, width in [*sizes, *([side, 2 * side] for side in range(300, 1500, 50))]:
        image = torch.empty(1, 3, height, width, dtype=torch.uint8, device="meta")
        told = {name: getattr(processor, name) for name in LFM2_CUT}
        _, (rows,), (columns,), ((*size,),) = processor.resize_and_split(image, resample=2, **told)
        cuts.append([height, width, rows, columns, *size])
    (REFERENCES / "lfm2_vl_tiles.json").write_text(json.dumps(cuts) + "\n")
    arrays = {}
    for height, width in LFM2_SIZES:
        image = np.random.default_rng(height * width).integers(0, 256, (height, width, 3)).astype(np.uint8)
        given = Lfm2VlImageProcessor(**LFM2_TINY)(image, **PLAIN_PIXELS)
        lengths = given["pixel_attention_mask"].sum(1).tolist()
        parts = [one[:length] for one, length in zip(given["pixel_values"], lengths, strict=True)]
        arrays[f"{height}x{width}"] = torch.cat(parts).numpy().astype(np.uint8)
    np.savez_compressed(REFERENCES / "lfm2_vl_tiles.npz", **arrays)


COMPUTED: dict[str, Callable[..., tuple]] = {
    "qwen": qwen,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "mistral3": pixtral,
    "pixtral": pixtral,
    "lfm2_vl": lfm2_vl,
}

LFM2_CUT = (
    "downsample_factor", "min_tiles", "max_tiles", "use_thumbnail", "min_image_tokens", "max_image_tokens",
    "encoder_patch_size", "tile_size", "max_pixels_tolerance",
)  # fmt: skip
PLAIN_PIXELS = {"do_rescale": False, "do_normalize": False, "return_tensors": "pt"}

# Pixtral is published as a llava; mlx-lm and converters of MLX call it pixtral.
PUBLISHED_AS = {"pixtral": "llava"}


def main(names: list[str]) -> None:
    REFERENCES.mkdir(exist_ok=True)
    for name in names or FAMILIES:
        family = FAMILIES[name]
        model = make_model(family)
        told = published_names(model)
        (REFERENCES / f"{name}.json").write_text(json.dumps(told, indent=0) + "\n")
        arrays = {}
        for index, grid in enumerate(family.grids):
            side = family.config["vision_config"]["patch_size"]
            rng = np.random.default_rng(index)
            image = rng.integers(0, 256, size=(grid[0] * side, grid[1] * side, 3), dtype=np.uint8)
            compute = next(compute for start, compute in COMPUTED.items() if name.startswith(start))
            with torch.no_grad():
                pixels, states, deep = compute(model, family, image, grid)
            arrays |= {
                f"{index}.pixels": np.asarray(pixels).astype(np.uint8),
                f"{index}.states": states.numpy(),
            }
            arrays |= {f"{index}.deep{i}": part.numpy() for i, part in enumerate(deep)}
        np.savez_compressed(REFERENCES / f"{name}.npz", **arrays)
        print(name, len(told), "arrays", {key: value.shape for key, value in arrays.items()})

    if not names:
        write_whole_gemma4(None)
        write_whole_gemma4("vision")
        write_whole_lfm2()
        write_tiles()


if __name__ == "__main__":
    main(sys.argv[1:])
