import math
from datetime import date

import pytest

from reprise.config.setting import SettingsError
from reprise.config.settings import SETTINGS, Settings


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_whole_sentences_of_help(name):
    text = SETTINGS[name].help
    assert text[0].isupper()
    assert text.endswith(".")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_a_value_that_the_setting_itself_allows(name):
    known = SETTINGS[name]
    assert known.check(known.default) == known.default


@pytest.mark.parametrize("name", [name for name, known in SETTINGS.items() if known.kind == "whole number"])
def test_a_limit_is_allowed_and_the_number_beyond_it_is_not(name):
    known = SETTINGS[name]
    for limit, beyond in [(known.at_least, -1), (known.at_most, +1)]:
        if limit is not None:
            assert known.parse(str(limit)) == limit
            with pytest.raises(SettingsError, match=f"{name} is {limit + beyond}; it must be "):
                known.parse(str(limit + beyond))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("port", "70000", "port is 70000; it must be between 0 and 65535"),
        ("port", "http", "port is 'http'; it must be a whole number between 0 and 65535"),
        ("port", "80.5", "port is '80.5'; it must be a whole number between 0 and 65535"),
        ("max_rows", "0", "max_rows is 0; it must be at least 1"),
        ("draft_overhead", "-1", "draft_overhead is -1.0; it must be at least 0"),
        ("draft_overhead", "nan", "draft_overhead is nan; it must be finite"),
        ("draft_overhead", "inf", "draft_overhead is inf; it must be finite"),
        ("log_format", "xml", "log_format is 'xml'; it must be one of text, json"),
        ("host", "", "host is ''; it must be non-empty text"),
        ("model", "", "model is ''; it must be non-empty text, or none"),
        ("chat_template_kwargs", "[1]", "is '[1]'; it must be a JSON object such as"),
        ("chat_template_kwargs", "{a: 1}", "is '{a: 1}'; it must be a JSON object such as"),
        ("chat_template_kwargs", '{"a": NaN}', "it must be a JSON object such as"),
        ("served_model_name", "a,,b", "it must be a list without empty entries"),
    ],
)
def test_the_error_for_a_wrong_value_names_the_setting_and_what_is_allowed(name, text, message):
    with pytest.raises(SettingsError) as caught:
        SETTINGS[name].parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [True, "8000", 80.0, None, [8000], math.nan])
def test_only_a_whole_number_from_a_file_is_a_whole_number(given):
    with pytest.raises(SettingsError, match="port is"):
        SETTINGS["port"].check(given)


def test_a_whole_number_is_valid_for_any_number():
    assert SETTINGS["idle_unload_s"].check(3) == 3


def test_an_object_holds_only_what_json_can_hold():
    known = SETTINGS["chat_template_kwargs"]
    assert known.parse('{"a": null}') == known.check({"a": None}) == {"a": None}
    with pytest.raises(SettingsError, match="it must be a JSON object"):
        known.check({"a": date(2026, 1, 1)})


def test_a_huge_number_gets_the_same_error_as_any_other():
    assert SETTINGS["max_queue"].parse("1" + "0" * 400) == 10**400
    with pytest.raises(SettingsError, match="it must be between"):
        SETTINGS["port"].parse("1" + "0" * 400)


def test_the_word_none_unsets_an_optional_setting():
    assert SETTINGS["max_context_tokens"].parse("none") is None
    with pytest.raises(SettingsError, match="port is 'none'"):
        SETTINGS["port"].parse("none")


def test_a_list_is_separated_by_commas():
    assert SETTINGS["served_model_name"].parse("gpt-4o, local") == ("gpt-4o", "local")
    assert SETTINGS["served_model_name"].parse("") == ()


def test_settings_made_by_hand_are_validated_too():
    with pytest.raises(SettingsError, match="port is 70000"):
        Settings(port=70000)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().port = 1


def test_the_bundled_model_is_the_default():
    assert Settings().model_source.endswith("demo_model")
    assert Settings(model="/models/mine").model_source == "/models/mine"
    assert Settings(model="reprise-demo").model_source == Settings().model_source
