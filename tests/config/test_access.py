"""Settings that let clients in say no to what would let in more than was meant."""

import pytest

from config.setting import SettingsError
from config.settings import SETTINGS, Settings
from config.sources import resolve

KEY = "a-key-that-nobody-may-see"


def test_several_keys_come_from_one_variable():
    settings = resolve(environment={"REPRISE_API_KEY": "one, two"}).settings
    assert settings.api_key == ("one", "two")
    assert settings.needs_key
    assert not Settings().needs_key


@pytest.mark.parametrize("key", ["a key", "schlüssel", "line\nbreak", "\x7f"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(key):
    with pytest.raises(SettingsError, match="api_key must be visible ASCII") as caught:
        Settings(api_key=(key,))
    assert key not in str(caught.value)


def test_no_complaint_and_no_print_shows_a_key():
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
def test_an_origin_as_browsers_send_it_is_taken(origin):
    assert Settings(cors_origin=(origin,)).cors_origin == (origin,)


def test_all_origins_need_a_key_or_a_word():
    with pytest.raises(SettingsError, match="every web page"):
        Settings(cors_origin=("*",))
    assert Settings(cors_origin=("*",), api_key=(KEY,))
    assert Settings(cors_origin=("*",), api_key_file="keys")
    assert Settings(cors_origin=("*",), insecure=True)


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a/b", "*", ".example.com"])
def test_an_allowed_host_is_a_name_alone(name):
    with pytest.raises(SettingsError, match="allowed_host is "):
        Settings(allowed_host=(name,))
