"""Templates of real models lose nothing of a conversation and refuse none.

They are those that llama.cpp tests its own programs with, in the source package of llama-cpp-python. Their
text is the models' makers'; none of it is kept here.
"""

import tarfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from mlx_lm.utils import load_tokenizer

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.sandbox.child_process import PROCESS
from reprise.engine.text.templates.chat_template import ChatTemplate
from reprise.server.prompt.encoder import to_harmony_messages, to_harmony_tools
from tests.engine.text.templates.shapes import SHAPES, lost
from tests.real_weights.packages import CACHE, download

PACKAGE = "llama-cpp-python==0.3.36"
TEMPLATES = CACHE / "templates"
NUM_TEMPLATES = 70


def find_templates() -> Path:
    """Return the folder of the templates; skips the test if the package cannot be had."""
    if not TEMPLATES.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as name:
            folder = Path(name)
            fetch_templates(folder)
            # Another process may have been faster; none ever sees half of them.
            with suppress(OSError):
                folder.joinpath("templates").rename(TEMPLATES)
    return TEMPLATES


def fetch_templates(folder: Path) -> None:
    download(folder, "--no-binary=:all:", PACKAGE)
    (archive,) = folder.glob("*.tar.gz")
    (folder / "templates").mkdir()
    with tarfile.open(archive) as packed:
        for member in packed:
            name = Path(member.name)
            if name.match("models/templates/*.jinja") and (source := packed.extractfile(member)):
                (folder / "templates" / name.name).write_bytes(source.read())


@cache
def load(file: Path) -> ChatTemplate:
    PROCESS.isolate()
    changed = {"chat_template": file.read_text(encoding="utf-8"), "bos_token": "<|im_start|>"}
    return ChatTemplate(load_tokenizer(Path(BUNDLED_MODEL), changed))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_refused_and_nothing_lost(shape: str):
    messages, tools = SHAPES[shape]
    files = sorted(find_templates().glob("*.jinja"))
    assert len(files) == NUM_TEMPLATES
    for file in files:
        template = load(file)
        if "gpt-oss" in file.stem:
            shown = to_harmony_tools(tools) if tools else None
            ids = template.render(to_harmony_messages(messages), shown, {}, form="unchanged")
        else:
            assert template.traits is not None
            ids = template.render(messages, tools, {}, form="fitted" if template.traits.tools else "generic")
        text = template._wrapped.decode(ids)
        assert lost(messages, tools, text) == [], file.stem
