"""`reprise convert`, and models that are converted before they are served."""

import hashlib
import json
import os
import resource
import shutil
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as Kind

from reprise.bench.run_all import is_lacking
from reprise.cli.convert import progress_bar
from reprise.cli.find_model import with_converted
from reprise.cli.main import main
from reprise.cli.output import format_bytes
from reprise.config.settings import Settings
from reprise.engine.interface.models import SamplingDefaults
from reprise.engine.model import device, loading
from reprise.engine.model.convert import conversion
from reprise.engine.model.convert.conversion import convert
from reprise.engine.model.convert.sources import PACKAGED, ConvertError, Options, Packaged
from reprise.engine.model.files.model_folder import read_sampling_defaults
from reprise.engine.model.hub import RESERVED_BYTES
from reprise.engine.model.loading import load_model
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.model.convert.gguf_files import write_gguf
from tests.engine.model.fake_hub import MODEL, serve, use
from tests.engine.model_folders import write_adapter, write_model

TOKENS = mx.array([[5, 900, 17, 4000, 33]])
Refused = pytest.CaptureFixture[str]


def logits(folder: Path, adapter: Path | None = None) -> np.ndarray:
    model, _ = mlx_lm.load(str(folder), adapter_path=adapter and str(adapter))
    return np.array(model(TOKENS).astype(mx.float32))


def arrays_of(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = mx.load(str(folder / "model.safetensors"))  # type: ignore[assignment]
    return found


def refusal(capsys: Refused, *arguments: str) -> str:
    """Return the one sentence with which `reprise convert` fails."""
    assert main(["convert", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.strip().splitlines()[-1].removeprefix("reprise: ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in Hugging Face's format."""
    return write_model(tmp_path / "own", "qwen3", 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reprise" / "converted"


def test_a_gguf_file_becomes_a_folder(tmp_path: Path, capsys: Refused) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    assert main(["convert", str(source), str(tmp_path / "new" / "made")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/new/made\n"
    assert f"serve it with: reprise serve {tmp_path}/new/made" in said.err
    (weights,) = (tmp_path / "new" / "made").glob("*.safetensors")
    before = format_bytes(sum(tensor.n_bytes for tensor in GGUFReader(source).tensors))
    assert f"reprise: {before} of weights became {format_bytes(weights.stat().st_size)}\n" in said.err
    assert main(["info", str(tmp_path / "new" / "made"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["architecture"], told["quantization"], told["refused"]) == (
        "qwen3",
        {"bits": 8, "group_size": 32},
        [],
    )


def test_a_folder_is_quantised_as_mlx_lm_does_it(folder: Path, tmp_path: Path) -> None:
    mlx_lm.convert(str(folder), str(tmp_path / "mlx"), quantize=True, q_bits=4, q_group_size=32)
    assert main(["convert", str(folder), str(tmp_path / "made"), "--bits", "4", "--group-size", "32"]) == 0
    assert np.array_equal(logits(tmp_path / "made"), logits(tmp_path / "mlx"))
    assert {file.name for file in (tmp_path / "made").glob("model*")} == {"model.safetensors"}
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "made" / name).read_text() == (tmp_path / "mlx" / name).read_text()


def test_types_change_as_asked(folder: Path, tmp_path: Path) -> None:
    assert main(["convert", str(folder), str(tmp_path / "made"), "--dtype", "bfloat16"]) == 0
    weights = mx.load(str(tmp_path / "made" / "model.safetensors"))
    assert {array.dtype for array in weights.values()} == {mx.bfloat16}


def test_a_quantised_folder_becomes_whole_again_but_is_not_quantised_twice(
    folder: Path, tmp_path: Path, capsys: Refused
) -> None:
    quantised = str(tmp_path / "quantised")
    assert main(["convert", str(folder), quantised, "--bits", "8"]) == 0
    capsys.readouterr()
    said = refusal(capsys, quantised, str(tmp_path / "made"), "--bits", "4")
    assert said == f"{quantised} is quantised already, to 8 bits; convert the original, or leave out --bits"
    assert main(["convert", quantised, str(tmp_path / "made"), "--dequantize"]) == 0
    assert "quantization" not in json.loads((tmp_path / "made" / "config.json").read_text())


@pytest.mark.parametrize("is_gguf", [False, True])
def test_an_adapter_is_fused(folder: Path, tmp_path: Path, is_gguf: bool) -> None:
    source = folder
    if is_gguf:
        source, folder = write_gguf(tmp_path / "model.gguf", "qwen3"), tmp_path / "plain"
        assert main(["convert", str(source), str(folder)]) == 0
    adapter = write_adapter(tmp_path / "adapter", folder)
    assert main(["convert", str(source), str(tmp_path / "made"), "--adapter", str(adapter)]) == 0
    fused = logits(tmp_path / "made")
    assert np.allclose(fused, logits(folder, adapter), atol=1e-3)
    assert not np.allclose(fused, logits(folder), atol=1e-3)


def test_a_model_on_the_hub_is_pulled_and_converted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Refused
) -> None:
    with serve({file.name: file.read_bytes() for file in folder.iterdir()}, {"model.safetensors"}) as hub:
        use(hub, tmp_path / "hub", monkeypatch)
        assert main(["convert", MODEL, str(tmp_path / "made"), "--bits", "8"]) == 0
        capsys.readouterr()
        assert "there is no model org/other on" in refusal(capsys, "org/other", str(tmp_path / "other"))
    assert json.loads((tmp_path / "made" / "config.json").read_text())["quantization"]["bits"] == 8
    assert not (tmp_path / "other").exists()


def test_nothing_is_overwritten(folder: Path, capsys: Refused) -> None:
    before = sorted(folder.iterdir())
    said = refusal(capsys, str(folder), str(folder))
    assert said == f"{folder} is there already; remove it, or name another folder"
    assert sorted(folder.iterdir()) == before


def test_what_is_not_there_is_named(folder: Path, tmp_path: Path, capsys: Refused) -> None:
    made = str(tmp_path / "made")
    assert refusal(capsys, "/no/such.gguf", made) == "there is no file or folder /no/such.gguf"
    assert refusal(capsys, str(folder), made, "--adapter", str(tmp_path)).endswith(
        "; give the adapter's folder"
    )
    assert "--adapter /none: there is no" in refusal(
        capsys, "org/never-asked-for", made, "--adapter", "/none"
    )
    (folder / "model.safetensors").unlink()
    assert f"mlx-lm cannot convert {folder}: No safetensors found" in refusal(capsys, str(folder), made)
    assert not Path(made).exists()


def test_a_folder_without_a_configuration_names_the_file_to_convert(tmp_path: Path, capsys: Refused) -> None:
    """LM Studio keeps each GGUF file in a folder of its own."""
    (folder := tmp_path / "kept").mkdir()
    wanted = f"{folder} has no config.json; give the folder of a model that has one, or "
    assert refusal(capsys, str(folder), str(tmp_path / "made")) == f"{wanted}a GGUF file"
    source = write_gguf(folder / "model.gguf")
    assert refusal(capsys, str(folder), str(tmp_path / "made")) == f"{wanted}{source}"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: Refused) -> None:
    source = write_gguf(tmp_path / "model.gguf")
    said = refusal(capsys, str(source), str(source / "made"))
    assert said == f"cannot write {source}/made: File exists; name a folder that can be written"


def test_a_model_that_embeds_is_refused_as_it_would_lose_its_pooling(
    folder: Path, tmp_path: Path, capsys: Refused
) -> None:
    (folder / "modules.json").write_text("[]")
    said = refusal(capsys, str(folder), str(tmp_path / "made"))
    assert said == f"{folder} embeds or ranks texts; such a model is served as it is, not converted"
    assert not (tmp_path / "made").exists()


def test_that_a_model_will_see_no_more_is_said(tmp_path: Path, capsys: Refused) -> None:
    source = write_seeing(tmp_path / "seeing", "qwen2_5_vl")
    assert main(["convert", str(source), str(tmp_path / "made")]) == 0
    assert "the new model reads text only" in capsys.readouterr().err


def test_what_mlx_lm_says_is_one_line(folder: Path, tmp_path: Path, capsys: Refused) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "no\nsuch"}))
    said = refusal(capsys, str(folder), str(tmp_path / "made"))
    assert said == f"mlx-lm cannot convert {folder}: Model type no; look for it in MLX's format"


@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_disk_without_room_is_seen_before(
    folder: Path, tmp_path: Path, capsys: Refused, monkeypatch: pytest.MonkeyPatch, is_gguf: bool
) -> None:
    source = write_gguf(tmp_path / "model.gguf") if is_gguf else folder
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1 << 30))
    before = sorted(tmp_path.iterdir())
    said = refusal(capsys, str(source), str(tmp_path / "made"))
    assert "GB to spare, but the disk has 1.1 GB free; make room" in said
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_disk_that_is_full_in_the_end_leaves_nothing(
    folder: Path, tmp_path: Path, capsys: Refused, is_gguf: bool
) -> None:
    source = write_gguf(tmp_path / "model.gguf") if is_gguf else folder
    before = sorted(tmp_path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Files cannot grow beyond that, as if there were no more room.
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        said = refusal(capsys, str(source), str(tmp_path / "made"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.startswith(f"cannot convert {source} into {tmp_path}/made: ")
    assert said.endswith("; the disk may be full, or the model's file cut off")
    assert sorted(tmp_path.iterdir()) == before


def test_a_conversion_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf")

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), tmp_path / "made", Options(), interrupt)
    assert list(tmp_path.iterdir()) == [source]


def test_a_gguf_file_is_converted_once_and_again_after_it_has_changed(
    tmp_path: Path, cache: Path, capsys: Refused
) -> None:
    source = write_gguf(tmp_path / "my-model.gguf", "qwen3", Kind.Q4_0)
    settings = Settings(model=str(source), draft_model=str(source))
    found = with_converted(settings, progress_bar)
    assert f"reprise: converting my-model.gguf, once, into {found.model}" in capsys.readouterr().err
    assert found.model == found.draft_model
    assert found.model_name == "my-model"
    assert Path(found.model).is_relative_to(cache)
    assert with_converted(settings, progress_bar) == found
    assert capsys.readouterr().err == ""
    os.utime(source, (1, 1))
    assert with_converted(settings, progress_bar).model != found.model


@pytest.mark.usefixtures("cache")
def test_a_served_file_and_a_converted_one_have_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "quantised_steps_gain", lambda: True)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q6_K, **sizes)
    found = Path(str(with_converted(Settings(model=str(source)), progress_bar).model))
    assert json.loads((found / "config.json").read_text())["quantization"] == {"bits": 8, "group_size": 32}
    assert main(["convert", str(source), str(tmp_path / "made")]) == 0
    for file in found.glob("*"):
        assert file.is_dir() or file.read_bytes() == (tmp_path / "made" / file.name).read_bytes()


@pytest.mark.parametrize("is_gguf", [False, True])
def test_the_bytes_of_all_are_known_from_the_start(folder: Path, tmp_path: Path, is_gguf: bool) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0) if is_gguf else folder
    told: list[tuple[int, int]] = []
    sizes = convert(str(source), tmp_path / "made", Options(), lambda *at: told.append(at))
    assert told == sorted(told)
    (first, total), last = told[0], told[-1]
    assert (first, last) == (0, (total, total))
    weights = arrays_of(tmp_path / "made")
    assert sizes.after == (tmp_path / "made" / "model.safetensors").stat().st_size
    if is_gguf:
        assert total == sizes.before == sum(tensor.n_bytes for tensor in GGUFReader(source).tensors)
    else:
        assert total == sum(array.nbytes for array in weights.values())


@pytest.mark.parametrize(
    ("gains", "memory_bytes", "free_bytes", "is_quantised"),
    [
        (True, 1 << 40, 1 << 40, True),
        (False, 1 << 40, 1 << 40, False),
        (False, 8_400_000, 1 << 40, True),
        (False, 1 << 40, RESERVED_BYTES + 4_200_000, True),
    ],
)
def test_weights_are_dequantised_where_drafts_gain_only_so_and_memory_and_disk_hold_them(
    gains: bool,
    memory_bytes: int,
    free_bytes: int,
    is_quantised: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Refused,
) -> None:
    """The model takes 4,460,000 bytes in bfloat16."""
    monkeypatch.setattr(conversion, "quantised_steps_gain", lambda: gains)
    monkeypatch.setattr(loading, "quantised_steps_gain", lambda: False)
    monkeypatch.setattr(device, "usable_bytes", lambda: memory_bytes)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, free_bytes))
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q6_K, **sizes)
    found = Path(str(with_converted(Settings(model=str(source)), progress_bar).model))
    assert main(["info", str(source), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    if is_quantised:
        assert info["quantization"] == {"bits": 8, "group_size": 32}
        assert ", so drafts cannot pay here; in bfloat16 they can: `reprise convert" in info["weights_note"]
    else:
        assert {array.dtype for array in mx.load(str(found / "model.safetensors")).values()} == {mx.bfloat16}
        assert info["weights_note"].startswith(
            "dequantised from Q6_K: with quantised weights MLX's CPU build"
        )
    loaded = load_model(str(found), "model", None).info
    assert loaded.weights_note == info["weights_note"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--dtype", "bfloat16"],
            "; with scales of bfloat16 each step takes many times as long as with float32; ",
        ),
        (["--dtype", "float32"], " as for n steps, so drafts cannot pay here; in bfloat16 they can: "),
        (["--dequantize"], "reprise: dequantised from Q8_0: "),
    ],
)
def test_convert_warns_of_weights_that_are_slow_here(
    arguments: list[str], said: str, tmp_path: Path, capsys: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "quantised_steps_gain", lambda: False)
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    assert main(["convert", str(source), str(tmp_path / "made"), *arguments]) == 0
    assert said in capsys.readouterr().err


def test_folders_and_names_stay_as_they_are(folder: Path) -> None:
    for model in (None, str(folder), "org/name"):
        assert with_converted(Settings(model=model), progress_bar) == Settings(model=model)


def test_a_model_that_cannot_be_converted_is_not_served(tmp_path: Path, cache: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", fields={"general.architecture": "mamba"})
    with pytest.raises(ConvertError, match="mamba"):
        with_converted(Settings(model=str(source)), progress_bar)
    with pytest.raises(ConvertError, match=f"^there is no file {tmp_path}/no.gguf$"):
        with_converted(Settings(model=str(tmp_path / "no.gguf")), progress_bar)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Path, sha256: str) -> None:
    """Have a package installed with a GGUF file, which the name made-up stands for."""
    packaged = Packaged(
        "made-up-model==1.0", "made_up/model.gguf", sha256, {"temperature": 0.2, "top_p": 0.9}
    )
    site = tmp_path / "site"
    info = site / "made_up_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {packaged.package}\nVersion: 1.0\n")
    (site / packaged.file).parent.mkdir()
    shutil.copy(content, site / packaged.file)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setitem(PACKAGED, "made-up", packaged)


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_packaged_model_is_described_pulled_and_converted_by_its_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Refused
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    install(tmp_path, monkeypatch, source, sha256_of(source))
    assert main(["info", "made-up"]) == 1
    assert capsys.readouterr().err == (
        "reprise: made-up is converted when it is first served: reprise serve made-up\n"
    )
    assert main(["pull", "made-up"]) == 0
    (folder,) = cache.glob("*/made-up")
    assert capsys.readouterr().out == f"{folder}\n"
    assert main(["info", "made-up", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "qwen3"
    assert main(["convert", "made-up", str(tmp_path / "made"), "--dtype", "float32"]) == 0
    assert logits(tmp_path / "made").shape == (1, 5, 4096)


def test_a_packaged_model_recommends_its_makers_sampling_is_listed_and_removed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Refused
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert PACKAGED["smollm2"].sampling == {"temperature": 0.2, "top_p": 0.9}
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    install(tmp_path, monkeypatch, source, sha256_of(source))
    assert main(["rm", "made-up"]) == 1
    told = "made-up has not been converted, so there is nothing to remove"
    assert capsys.readouterr().err == f"reprise: {told}\n"
    assert main(["pull", "made-up"]) == 0
    (folder,) = cache.glob("*/made-up")
    old = shutil.copytree(folder, cache / "of an older version" / "made-up")
    assert main(["convert", "made-up", str(tmp_path / "made")]) == 0
    assert read_sampling_defaults(tmp_path / "made") == read_sampling_defaults(folder)
    assert read_sampling_defaults(folder) == SamplingDefaults(temperature=0.2, top_p=0.9)
    capsys.readouterr()
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["model", "made-up"]
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["path"], listed["fault"]) == ("made-up", str(folder), None)
    assert main(["rm", "made-up"]) == 0
    assert capsys.readouterr().out.startswith("removed made-up (")
    assert not folder.parent.exists()
    assert not old.parent.exists()


def test_what_a_file_was_converted_into_is_removed_without_the_file(
    tmp_path: Path, cache: Path, capsys: Refused
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    folder = Path(str(with_converted(Settings(model=str(source)), progress_bar).model))
    assert folder.is_relative_to(cache)
    assert main(["rm", str(source)]) == 0
    assert capsys.readouterr().out.startswith(f"removed {source} (")
    assert not folder.parent.exists()
    assert source.exists()


def test_benchmarks_take_every_name_that_serve_takes(
    folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Refused
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    install(tmp_path, monkeypatch, source, sha256_of(source))
    assert is_lacking("made-up")
    bench = [
        "bench",
        "replay",
        "--workloads",
        "edits",
        "--cases",
        "1",
        "--drafters",
        "newest-2",
        "--tokenizer",
    ]
    with serve({file.name: file.read_bytes() for file in folder.iterdir()}, {"model.safetensors"}) as hub:
        use(hub, tmp_path / "hub", monkeypatch)
        told = []
        for model in ("made-up", str(source), str(folder), MODEL):
            assert main([*bench, model]) == 0
            told.append(capsys.readouterr().out.partition("load_at_start")[0])
        assert main([*bench, "org/other"]) == 1
        assert "org/other" in capsys.readouterr().err
    assert "edits" in told[0]
    assert len({*told}) == 1
    assert not is_lacking("made-up")
    assert len([*cache.glob("*/*")]) == 2
    for wrong in (str(tmp_path), "./none", "/no/such.gguf"):
        assert main([*bench, wrong]) in (1, 2)
        assert wrong in capsys.readouterr().err


@pytest.mark.usefixtures("cache")
def test_a_model_in_an_installed_package_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    install(tmp_path, monkeypatch, source, sha256_of(source))
    settings = with_converted(Settings(model="made-up"), progress_bar)
    assert settings.model_name == "made-up"
    assert logits(Path(str(settings.model))).shape == (1, 5, 4096)
    shutil.rmtree(tmp_path / "site")
    assert with_converted(Settings(model="made-up"), progress_bar) == settings, "the package is needed once"


def test_a_package_with_another_file_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, write_gguf(tmp_path / "model.gguf"), "ab" * 32)
    with pytest.raises(ConvertError, match=r"does not have the checksum abababababab...; download it again"):
        conversion.converted("made-up", lambda _: nullcontext(lambda _done, _total: None))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_package_is_not_fetched_onto_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1 << 20))
    monkeypatch.setitem(PACKAGED, "made-up", Packaged("reprise-no-such-model==1.0", "model.gguf", ""))
    with pytest.raises(ConvertError, match=r"the disk of .* has 0.0 GB free, .*; make room, or name another"):
        conversion.converted("made-up", lambda _: nullcontext(lambda _done, _total: None))
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_package_that_cannot_be_had_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(PACKAGED, "made-up", Packaged("reprise-no-such-model==1.0", "model.gguf", ""))
    with pytest.raises(
        ConvertError, match=r"cannot fetch the package reprise-no-such-model==1.0 \(.+\); with a"
    ):
        conversion.converted("made-up", lambda _: nullcontext(lambda _done, _total: None))
    assert not [path for path in cache.iterdir() if path.is_dir()]
