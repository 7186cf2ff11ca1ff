"""The settings of access refuse values that would let in more clients than intended."""

import pytest

from reprise.config.setting import SettingsError
from reprise.config.settings import SETTINGS, Settings
from reprise.config.sources import resolve

KEY = "a-secret-key"


def test_several_keys_come_from_one_variable():
    settings = resolve(environment={"REPRISE_API_KEY": "one, two"}).settings
    assert settings.api_key == ("one", "two")
    assert settings.needs_key
    assert not Settings().needs_key


@pytest.mark.parametrize("key", ["a key", "schlüssel", "line\nbreak", "\x7f"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key):
    with pytest.raises(SettingsError, match="api_key must be visible ASCII") as caught:
        Settings(api_key=(key,))
    assert key not in str(caught.value)


def test_neither_an_error_nor_a_repr_shows_a_key():
    with pytest.raises(SettingsError) as caught:
        SETTINGS["api_key"].check([KEY, 5])
    assert KEY not in str(caught.value)
    assert KEY not in repr(Settings(api_key=(KEY,)))


@pytest.mark.parametrize(
    "origin",
    ["chat.example.com", "https://chat.example.com/", "https://a b", "null", "https://*.example.com"],
)
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(SettingsError, match="cors_origin is "):
        Settings(cors_origin=(origin,))


@pytest.mark.parametrize(
    "origin", ["https://chat.example.com", "http://localhost:3000", "http://[::1]:80", "app://obsidian.md"]
)
def test_an_origin_that_browsers_send_is_accepted(origin):
    assert Settings(cors_origin=(origin,)).cors_origin == (origin,)


def test_allowing_every_origin_needs_a_key_or_insecure():
    with pytest.raises(SettingsError, match="every web page"):
        Settings(cors_origin=("*",))
    assert Settings(cors_origin=("*",), api_key=(KEY,))
    assert Settings(cors_origin=("*",), api_key=("@keys",))
    assert Settings(cors_origin=("*",), insecure=True)


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a/b", "*", ".example.com"])
def test_an_allowed_host_has_neither_scheme_nor_port_nor_path(name):
    with pytest.raises(SettingsError, match="allowed_host is "):
        Settings(allowed_host=(name,))
