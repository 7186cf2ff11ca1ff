"""The server listens for other machines only with an API key or with --insecure."""

import logging
import socket

import pytest

from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.server.banner import banner
from reprise.server.run import bind_address, exposure_error, run
from tests.server.fake_engine import FakeEngine


def _exposure_error(**given):
    settings = Settings(port=0, **given)
    with bind_address(settings.host, settings.port) as taken:
        return exposure_error(settings, taken)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_addresses_need_a_key(host):
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    error = _exposure_error(host=host)
    for word in (host, "--api-key", "--insecure"):
        assert word in error
    assert _exposure_error(host=host, api_key=("key",)) is None


def test_a_key_file_is_enough_and_an_empty_one_is_an_error(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    with pytest.raises(SettingsError, match="has no keys"):
        _exposure_error(host="0.0.0.0", api_key=(f"@{file}",))
    file.write_text("key\n")
    assert _exposure_error(host="0.0.0.0", api_key=(f"@{file}",)) is None


def test_insecure_allows_it_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "reprise"):
        assert _exposure_error(host="0.0.0.0", insecure=True) is None
    assert "without an API key" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", None])
def test_loopback_needs_no_key(host):
    assert _exposure_error(**({"host": host} if host else {})) is None


def test_the_error_is_one_line_and_status_1_before_anything_is_loaded(capsys, monkeypatch):
    # The configuration would stay in force for later tests.
    monkeypatch.setattr("reprise.server.run.configure_logs", lambda *_, **__: None)
    assert run(Settings(host="0.0.0.0", port=0, model="/no/such/folder")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reprise: listening on 0.0.0.0 lets other machines use this server")


def test_the_command_to_try_has_a_place_for_the_key():
    engine, keys = FakeEngine(), ((), ("secret",))
    tried = [banner(engine.info, Settings(api_key=key), "http://a", engine.tokenizer, "") for key in keys]
    assert ["Authorization: Bearer YOUR-KEY" in text for text in tried] == [False, True]
