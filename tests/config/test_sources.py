import re
from itertools import product

import pytest

from reprise.cli.arguments import Parser, UsageError, unknown_arguments
from reprise.cli.config import as_toml
from reprise.config.per_model import settings_of
from reprise.config.setting import SettingsError
from reprise.config.settings import SETTINGS, Settings, costs_file
from reprise.config.sources import Origin, resolve
from reprise.config.unknown import REMOVED


@pytest.fixture
def toml(tmp_path):
    """Return a function that writes a settings file and returns its path."""

    def write(text):
        file = tmp_path / "reprise.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_the_defaults_are_in_force_without_any_other_source():
    resolved = resolve()
    assert resolved.settings == Settings()
    assert set(resolved.origins.values()) == {Origin("default")}


@pytest.mark.parametrize(("in_file", "in_environment", "in_flags"), list(product([False, True], repeat=3)))
def test_flags_win_over_environment_over_file_over_defaults(toml, in_file, in_environment, in_flags):
    file = toml("port = 1001\n") if in_file else None
    environment = {"REPRISE_PORT": "1002"} if in_environment else {}
    flags = {"port": "1003"} if in_flags else {}

    resolved = resolve(flags, environment, file)

    expected, source = 8000, "default"
    if in_file:
        expected, source = 1001, f"file {file}"
    if in_environment:
        expected, source = 1002, "environment REPRISE_PORT"
    if in_flags:
        expected, source = 1003, "flag --port"
    assert resolved.settings.port == expected
    assert str(resolved.origins["port"]) == source


def test_sources_that_set_different_settings_are_combined(toml):
    settings = resolve({"port": "1"}, {"REPRISE_MAX_ROWS": "2"}, toml("max_queue = 3\n")).settings
    assert settings == Settings(port=1, max_rows=2, max_queue=3)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_be_set_by_its_variable(name):
    known = SETTINGS[name]
    samples = {"kv_bits": "8", "draft_type": "suffix", "ngram_table_entries": "4096"}
    samples |= {"cors_origin": "http://localhost:3000"}
    text = samples.get(name) or (known.choices[-1] if known.choices else "9")
    if known.kind in ("boolean", "object"):
        text = "true" if known.kind == "boolean" else '{"a": [null, 1]}'
    resolved = resolve(environment={known.variable: text})
    assert getattr(resolved.settings, name) == known.parse(text)
    assert resolved.origins[name] == Origin("environment", known.variable)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kv_bits": "6"}, "kv_bits is 6; it must be 4 or 8"),
        ({"draft_type": "draft-model"}, "needs a draft model: set draft_model"),
        ({"exact": "perhaps"}, "exact is 'perhaps'; it must be true or false"),
    ],
)
def test_impossible_combinations_of_settings_are_refused(given, complaint):
    with pytest.raises(SettingsError, match=complaint):
        resolve(given)


def test_the_costs_are_kept_in_the_cache_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(costs_file()) == "/somewhere/reprise/step_costs.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(costs_file()) == "/home/ada/.cache/reprise/step_costs.json"


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(SettingsError, match="set XDG_CACHE_HOME"):
        costs_file()


def test_a_flag_unsets_what_the_file_set(toml):
    file = toml("max_context_tokens = 4096\n")
    assert resolve({"max_context_tokens": "none"}, file=file).settings.max_context_tokens is None


def test_a_file_unsets_a_default_with_the_word_none(toml):
    assert resolve(file=toml('wedlm_entropy_threshold = "none"')).settings.wedlm_entropy_threshold is None


def test_the_file_may_be_named_by_a_variable_and_a_flag_names_another(toml, tmp_path):
    file = toml("port = 1001\n")
    other = tmp_path / "other.toml"
    other.write_text("max_queue = 2\n")
    environment = {"REPRISE_CONFIG": str(file)}
    assert resolve(environment=environment).settings == Settings(port=1001)
    assert resolve(environment=environment, file=other).settings == Settings(max_queue=2)


def test_variables_of_other_programs_are_ignored():
    assert resolve(environment={"PORT": "1", "HOME": "/", "REPRISED": "x"}).settings == Settings()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"REPRISE_PROT": "1"},
            "unknown variable REPRISE_PROT in the environment; did you mean REPRISE_PORT?",
        ),
        ({"REPRISE_MAX_ROW": "1"}, "did you mean REPRISE_MAX_ROWS?"),
        ({"REPRISE_CONFG": "x"}, "did you mean REPRISE_CONFIG?"),
        ({"REPRISE_QQQQ": "x"}, "unknown variable REPRISE_QQQQ in the environment"),
        ({"REPRISE_PORT": "70000"}, "port is 70000; it must be between 0 and 65535 (set by REPRISE_PORT)"),
    ],
)
def test_the_error_for_a_wrong_variable_suggests_the_closest_known_one(environment, message):
    with pytest.raises(SettingsError) as caught:
        resolve(environment=environment)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting prot in {file}; did you mean port?"),
        ("max-rows = 1", "unknown setting max-rows in {file}; did you mean max_rows?"),
        ("[server]\nport = 1", "unknown setting server in {file}"),
        ("port = 70000", "port is 70000; it must be between 0 and 65535 (set by {file})"),
        ("port = true", "port is True; it must be a whole number between 0 and 65535 (set by {file})"),
        ("port = ", "{file} is not valid TOML: "),
        ("host = 'a\\nb", "{file} is not valid TOML: "),
    ],
)
def test_the_error_for_a_wrong_file_names_the_file_and_the_fault(toml, text, message):
    file = toml(text)
    with pytest.raises(SettingsError) as caught:
        resolve(file=file)
    assert str(caught.value).startswith(message.format(file=file))


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    file = tmp_path / "reprise.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not valid TOML"):
        resolve(file=file)


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path, name):
    with pytest.raises(SettingsError, match="cannot read"):
        resolve(file=tmp_path / name)


def test_a_file_in_the_home_of_nobody_is_an_error():
    with pytest.raises(SettingsError, match="cannot read ~nobody-here/settings"):
        resolve(environment={"REPRISE_CONFIG": "~nobody-here/settings.toml"})


def test_the_printed_settings_may_hold_any_character(toml):
    resolved = resolve({"served_model_name": "\U0001f600"})
    assert resolve(file=toml(as_toml(resolved))).settings == resolved.settings


def test_a_section_overrides_settings_for_one_model(toml):
    resolved = resolve(
        {"kv_bits": "8", "draft_type": "suffix"},
        file=toml(
            'max_context_tokens = 900\n[models."org/one"]\nmax_context_tokens = 300\ndraft_type = "none"\n'
        ),
    )
    one = settings_of(resolved.settings, resolved.sections, "org/one")
    other = settings_of(resolved.settings, resolved.sections, "org/other")
    assert (one.max_context_tokens, one.draft_type, one.kv_bits) == (300, "none", 8)
    assert (other.max_context_tokens, other.draft_type, other.kv_bits) == (900, "suffix", 8)


def test_what_was_chosen_for_the_first_model_does_not_hold_for_others(toml):
    resolved = resolve(
        {
            "model": "org/first",
            "draft_model": "org/small",
            "draft_type": "draft-model",
            "chat_template_kwargs": '{"preserve_thinking": true}',
        },
        file=toml(
            '[models."org/one"]\ndraft_model = "org/tiny"\ndraft_type = "draft-model"\n'
            "chat_template_kwargs = { clear_thinking = false }\n"
        ),
    )
    chosen = {
        name: (found.draft_model, found.draft_type, found.chat_template_kwargs)
        for name in ("org/first", "org/one", "org/other")
        if (found := settings_of(resolved.settings, resolved.sections, name))
    }
    assert chosen == {
        "org/first": ("org/small", "draft-model", {"preserve_thinking": True}),
        "org/one": ("org/tiny", "draft-model", {"clear_thinking": False}),
        "org/other": (None, "auto", None),
    }


def test_a_gguf_file_has_the_section_of_the_name_that_it_is_served_by(toml):
    resolved = resolve(
        {"model": "files/one.gguf", "draft_model": "org/small"},
        file=toml('[models."one"]\ndraft_type = "draft-model"\n'),
    )
    found = settings_of(resolved.settings, resolved.sections, resolved.settings.model_name)
    assert (found.draft_model, found.draft_type) == ("org/small", "draft-model")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("port = 1", r'port holds for the whole server: set it outside of \[models."one"\]'),
        ("draft_tipe = 1", r'unknown setting draft_tipe in \[models."one"\]; did you mean draft_type\?'),
        ("kv_bits = 'x'", r'kv_bits is \'x\'; .*\(set in \[models."one"\]\)'),
        ("chat_template_kwargs = {tools = 1}", "sets tools, which the server sets itself; leave it out"),
        ("kv_bits = 5", r'kv_bits is 5; it must be 4 or 8, or none \(for \[models."one"\]\)'),
    ],
)
def test_a_section_with_a_mistake_is_refused_by_name(toml, section, complaint):
    with pytest.raises(SettingsError, match=complaint):
        resolve(file=toml(f'[models."one"]\n{section}\n'))


def test_models_that_are_no_sections_are_refused(toml):
    with pytest.raises(SettingsError, match="must be sections such as"):
        resolve(file=toml("models = 3\n"))
    with pytest.raises(SettingsError, match=r'\[models."one"\] must be a section'):
        resolve(file=toml("[models]\none = 3\n"))


def test_the_printed_settings_with_sections_are_a_settings_file(toml):
    text = "max_rows = 2\nchat_template_kwargs = {a = {b = true}}\n"
    text += '[models."org/one"]\nmax_context_tokens = "none"\nexact = true\n'
    text += 'chat_template_kwargs = \'{"a": [null, "\\u0001"]}\'\n'
    resolved = resolve(file=toml(text))
    assert resolved.settings.chat_template_kwargs == {"a": {"b": True}}
    assert resolved.sections["org/one"]["chat_template_kwargs"] == {"a": [None, "\u0001"]}
    again = resolve(file=toml(as_toml(resolved)))
    assert (again.settings, again.sections) == (resolved.settings, resolved.sections)


PATHS = [name for name, known in SETTINGS.items() if known.is_path]


def test_every_setting_that_is_a_file_or_folder_is_a_path():
    named = {name for name, known in SETTINGS.items() if re.match(r"(File|Folder)\b", known.help)}
    assert named <= set(PATHS)
    assert {"model", "draft_model", "hosts"} <= set(PATHS)


@pytest.mark.parametrize("name", PATHS)
def test_a_tilde_in_a_path_is_the_home_folder_wherever_it_is_set(name, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    text, expected = "~/some thing.x", f"{tmp_path}/some thing.x"
    file = tmp_path / "reprise.toml"
    file.write_text(f'{name} = "{text}"\n')
    for found in (
        resolve({name: text}),
        resolve(environment={SETTINGS[name].variable: text}),
        resolve(environment={"REPRISE_CONFIG": "~/reprise.toml"}),
    ):
        assert getattr(found.settings, name) == expected
    assert getattr(Settings(**{name: text}), name) == expected


def test_names_of_the_hub_and_of_machines_stay_as_they_are():
    settings = Settings(model="owner/model~1", hosts="one,two")
    assert (settings.model, settings.hosts) == ("owner/model~1", "one,two")


@pytest.mark.parametrize("name", REMOVED)
def test_what_is_no_setting_any_more_is_named_with_what_to_do_wherever_it_is_set(name, toml):
    assert name not in SETTINGS
    flag, variable = f"--{name.replace('_', '-')}", f"REPRISE_{name.upper()}"
    for what, sources in (
        (f"setting {name} in ", {"file": toml(f"{name} = 3\n")}),
        (f'setting {name} in [models."one"]', {"file": toml(f'[models."one"]\n{name} = 3\n')}),
        (f"variable {variable} in the environment", {"environment": {variable: "3"}}),
    ):
        with pytest.raises(SettingsError) as caught:
            resolve(**sources)
        assert str(caught.value).startswith(what)
        assert str(caught.value).endswith(f" is gone: {REMOVED[name]}")
    with pytest.raises(UsageError, match=f"^argument {flag} is gone: {re.escape(REMOVED[name])}$"):
        raise unknown_arguments(Parser(), [f"{flag}=3"])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"gate": "perhaps"}, "gate is 'perhaps'; it must be one of auto, on, off, or a number"),
        ({"gate": "-1"}, "gate is -1.0; it must be at least 0"),
        ({"split": "20,"}, "split is '20,'; it must be pipeline, tensor or numbers"),
    ],
)
def test_a_word_or_numbers_are_checked(given, complaint):
    with pytest.raises(SettingsError, match=complaint):
        resolve(given)


def test_a_word_or_a_number_is_the_same_in_a_file_and_a_flag(toml):
    assert resolve({"gate": "0.05"}).settings.gate == resolve(file=toml("gate = 0.05")).settings.gate == 0.05
    assert resolve({"gate": "on"}).settings.gate == resolve(file=toml('gate = "on"')).settings.gate == "on"


def test_the_numbers_of_a_split_are_layers_of_a_pipeline():
    found = [(one.split_kind, one.split_layers) for one in map(split, ("pipeline", "tensor", "20,12"))]
    assert found == [("pipeline", ()), ("tensor", ()), ("pipeline", (20, 12))]


def split(text):
    return resolve({"split": text}).settings
