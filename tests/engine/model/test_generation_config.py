"""A model's recommended sampling is read from its folder, and its chat template can be replaced."""

import json
import shutil

import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import AnswerLimits, SamplingDefaults
from reprise.engine.model.files.model_folder import read_answer_limits, read_sampling_defaults
from reprise.engine.model.loading import LoadOptions, load_model, make_loader


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (
            '{"temperature": 0.6, "top_k": 20, "top_p": 0.95}',
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        (
            '{"temperature": 9, "top_k": "x", "min_p": true, "repetition_penalty": 1.1}',
            {"repetition_penalty": 1.1},
        ),
        ("[]", {}),
        ("{", {}),
        (None, {}),
    ],
)
def test_the_recommended_sampling_is_read(tmp_path, given, known):
    if given is not None:
        (tmp_path / "generation_config.json").write_text(given)
    assert read_sampling_defaults(tmp_path).known == known


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ('{"max_new_tokens": 300, "loop_guard_tokens": 0}', AnswerLimits(300, 0)),
        ('{"max_new_tokens": 0, "temperature": 1}', AnswerLimits()),
        (None, AnswerLimits()),
    ],
)
def test_the_recommended_limits_of_answers_are_read(tmp_path, given, limits):
    if given is not None:
        (tmp_path / "generation_config.json").write_text(given)
    assert read_answer_limits(tmp_path) == limits


def test_the_bundled_model_has_limits_that_end_its_answers():
    assert read_answer_limits(BUNDLED_MODEL) == AnswerLimits(2048, 128)


def test_a_model_brings_its_sampling_and_takes_another_template(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_MODEL, folder, ignore=shutil.ignore_patterns("draft*"))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5}))
    loaded = load_model(
        str(folder), "x", None, options=LoadOptions(chat_template="{{ messages[0].content }}!")
    )
    assert loaded.info.sampling_defaults == SamplingDefaults(temperature=0.5)
    tokenizer = loaded.tokenizer
    assert tokenizer.decode(tokenizer.render_chat([{"role": "user", "content": "hello"}])) == "hello!"


def test_a_template_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelError, match="chat template"):
        make_loader(Settings(chat_template=str(tmp_path / "none.jinja")))
