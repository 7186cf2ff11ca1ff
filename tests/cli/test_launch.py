"""`reprise serve --hosts`: what mlx.launch is given."""

import json
from pathlib import Path

import pytest

from reprise.cli.arguments import UsageError
from reprise.cli.launch import host_file
from reprise.cli.main import main


def test_a_host_file_is_made_of_names_and_addresses() -> None:
    with host_file("localhost,127.0.0.2") as file:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    assert found == {
        "backend": "ring",
        "hosts": [{"ssh": "localhost", "ips": ["127.0.0.1"]}, {"ssh": "127.0.0.2", "ips": ["127.0.0.2"]}],
    }
    assert not Path(file).exists()


def test_a_given_host_file_is_used_as_it_is() -> None:
    with host_file("hosts.json") as file:
        assert file == "hosts.json"


def test_a_name_without_an_address_is_refused() -> None:
    with (
        pytest.raises(UsageError, match=r"--hosts no\.such\.host\.invalid: no address"),
        host_file("no.such.host.invalid"),
    ):
        pass


def test_what_is_for_one_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLX_RANK", "1")
    assert main(["bench", "serve"]) == 2
    assert "reprise bench runs on one machine; reprise bench serve --hosts" in capsys.readouterr().err
