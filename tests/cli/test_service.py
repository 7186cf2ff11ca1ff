"""`reprise service` writes files that launchd and systemd accept, and leaves none where they cannot act."""

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprise.cli import service
from reprise.cli.main import main
from reprise.cli.service import LABEL, STOP_S, UNIT, Launchd, Systemd
from reprise.server.run import DRAIN_S, LAST_WRITES_S, STUCK_S

ARGUMENTS = ["--model", "/models/a b", "--served-model-name", 'x"$%y', "--max-rows", "4"]

LAUNCHCTL = """\
#!/bin/sh
echo "launchctl $*" >>"$FAKE/calls"
[ ! -e "$FAKE/unreachable" ] || { echo "Could not find domain for user gui: 501" >&2; exit 113; }
case "$1" in
print)
    case "$2" in gui/*/*) [ -e "$FAKE/loaded" ] || { echo "Could not find service" >&2; exit 113; } ;; esac
    cat "$FAKE/loaded" 2>/dev/null || true ;;
bootstrap)
    # For some seconds it refuses what it has just forgotten.
    [ ! -e "$FAKE/loaded" ] && [ ! -e "$FAKE/broken" ] && ! rm "$FAKE/forgotten" 2>/dev/null ||
        { echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; }
    [ -f "$3" ] || exit 2
    printf '%s = {\n\tstate = running\n\n\tpid = 4711\n\tlast exit code = 3\n\t\tstate = active\n}\n' "$2" \
        >"$FAKE/loaded" ;;
bootout)
    # Goes on while the server ends.
    { sleep 0.3; touch "$FAKE/forgotten"; rm "$FAKE/loaded"; } >/dev/null 2>&1 &
    echo "Boot-out failed: 36: Operation now in progress" >&2
    exit 36 ;;
*) exit 64 ;;
esac
"""

SYSTEMCTL = """\
#!/bin/sh
echo "systemctl $*" >>"$FAKE/calls"
[ ! -e "$FAKE/unreachable" ] || { echo "Failed to connect to bus: No medium found" >&2; exit 1; }
shift
case "$1" in
show-environment | daemon-reload | enable) ;;
restart)
    [ ! -e "$FAKE/broken" ] || { echo "Job for reprise.service failed" >&2; exit 1; }
    touch "$FAKE/loaded" ;;
disable) rm -f "$FAKE/loaded" ;;
show)
    if [ -e "$FAKE/loaded" ]; then
        printf 'LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=4711\nExecMainStatus=3\n'
    else
        printf 'LoadState=loaded\nActiveState=inactive\nSubState=dead\nMainPID=0\nExecMainStatus=0\n'
    fi ;;
*) exit 64 ;;
esac
"""


class Machine:
    """A home, and a supervisor of which the programs only write down what they are called with."""

    def __init__(self, folder: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.home = folder / "fake", folder / "home"
        programs = folder / "bin"
        for path in (self.folder, self.home, programs):
            path.mkdir()
        texts = {"launchctl": LAUNCHCTL, "systemctl": SYSTEMCTL, "journalctl": "#!/bin/sh\necho journal $*\n"}
        for name, text in texts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        for name in [name for name in os.environ if name.startswith("REPRISE_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE", str(self.folder))
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(service, "RELOADED_WITHIN_S", 0.5)
        monkeypatch.setattr(service, "find_program", lambda: "/opt/bin/reprise")
        self.file = service.find_supervisor().file

    def has(self, name: str) -> None:
        """Let something be wrong from now on."""
        (self.folder / name).touch()

    def calls(self) -> list[str]:
        """Return what the supervisor's programs were called with so far."""
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture(params=["darwin", "linux"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, request.param, monkeypatch)


def test_it_is_installed_shown_and_removed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "status"]) == 1
    assert capsys.readouterr().out == "not installed; `reprise service install` does that\n"
    assert main(["service", "remove"]) == 1
    assert capsys.readouterr().out == "not installed: there is nothing to remove\n"
    assert main(["service", "install", "--", *ARGUMENTS]) == 0
    assert machine.file.stat().st_mode & 0o777 == 0o600
    assert str(machine.file) in capsys.readouterr().out
    assert main(["service", "status"]) == 0
    said = capsys.readouterr().out
    assert "running" in said
    assert "process 4711, last exit status 3" in said
    # Installed again, with other arguments, while it runs.
    assert main(["service", "install"]) == 0
    assert "a b" not in machine.file.read_text()
    assert main(["service", "remove"]) == 0
    assert not [path for path in machine.home.rglob("*") if "reprise" in path.name and path.is_file()]
    assert not (machine.folder / "loaded").exists()


@pytest.mark.parametrize("fault", ["unreachable", "broken"])
def test_where_the_supervisor_cannot_act_nothing_is_left(
    machine: Machine, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    machine.has(fault)
    assert main(["service", "install"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert ("cannot be reached" in said.err) == (fault == "unreachable")
    assert "nothing was changed" in said.err
    assert not machine.file.exists()


def test_a_service_that_does_not_start_leaves_the_one_before(machine: Machine) -> None:
    assert main(["service", "install", "--", *ARGUMENTS]) == 0
    before = machine.file.read_bytes()
    machine.has("broken")
    assert main(["service", "install"]) == 1
    assert machine.file.read_bytes() == before
    assert machine.file.stat().st_mode & 0o777 == 0o600
    starts = [call for call in machine.calls() if "bootstrap" in call or "restart" in call]
    assert len(starts) >= 3


def test_a_supervisor_that_is_gone_is_said_and_the_file_stays(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "install"]) == 0
    machine.has("unreachable")
    if sys.platform == "linux":
        assert main(["service", "remove"]) == 1
        assert "cannot be reached" in capsys.readouterr().err
        assert machine.file.exists()
    assert main(["service", "status"]) == 1


def test_invalid_arguments_are_refused_before_anything_is_done(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "install", "--", "--prot", "1"]) == 2
    assert "did you mean --port?" in capsys.readouterr().err
    assert main(["service", "install", "--", "--port", "70000"]) == 2
    assert main(["service", "install", "--port", "1"]) == 2
    assert "unknown argument --port" in capsys.readouterr().err
    assert not machine.file.exists()


def test_variables_that_the_service_does_not_see_are_named_without_their_values(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    # It is not the service's, so it is not checked either.
    monkeypatch.setenv("REPRISE_PORT", "no number")
    assert main(["service", "install"]) == 0
    said = capsys.readouterr().out
    assert "does not see: HF_TOKEN, REPRISE_PORT" in said
    assert "secret" not in said + machine.file.read_text()


def test_the_supervisor_waits_until_the_server_gives_itself_up() -> None:
    assert service.STOP_S > DRAIN_S + STUCK_S + LAST_WRITES_S


def test_the_property_list_says_what_to_run_and_where() -> None:
    supervisor = Launchd()
    text = supervisor.render(["/opt/bin/reprise", "serve", *ARGUMENTS], Path("/work & play"))
    found = plistlib.loads(text.encode())
    assert found["Label"] == LABEL == supervisor.file.stem
    assert found["ProgramArguments"] == ["/opt/bin/reprise", "serve", *ARGUMENTS]
    assert found["WorkingDirectory"] == "/work & play"
    assert (found["RunAtLoad"], found["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert found["ExitTimeOut"] == STOP_S
    assert found["StandardErrorPath"].endswith("/Library/Logs/reprise.log")


@pytest.mark.mac
@pytest.mark.skipif(sys.platform != "darwin", reason="plutil is macOS's")
def test_plutil_accepts_the_property_list(tmp_path: Path) -> None:
    file = tmp_path / "agent.plist"
    file.write_text(Launchd().render(["/opt/bin/reprise", "serve", *ARGUMENTS], tmp_path))
    subprocess.run(["plutil", "-lint", str(file)], check=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_and_reads_the_same_arguments(tmp_path: Path) -> None:
    file = tmp_path / UNIT
    command = [shutil.which("env") or "", "serve", *ARGUMENTS, "two\nlines", "back\\slash"]
    file.write_text(Systemd().render(command, tmp_path))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(file)], capture_output=True, text=True, check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    # Complaints are of this file or of nothing here; without a session some are of the bus.
    assert UNIT not in done.stderr, done.stderr
    (line,) = [line for line in file.read_text().splitlines() if line.startswith("ExecStart=")]
    assert unquoted(line.removeprefix("ExecStart=")) == command


def unquoted(line: str) -> list[str]:
    """Read what systemd would run, by the rules of systemd.service(5)."""
    arguments, rest = [], line
    while rest:
        assert rest[0] == '"'
        text, at = "", 1
        while rest[at] != '"':
            two = rest[at : at + 2]
            known = {"\\n": "\n", '\\"': '"', "\\\\": "\\", "%%": "%", "$$": "$"}
            assert two in known or rest[at] not in "\\%$"
            text, at = (text + known[two], at + 2) if two in known else (text + rest[at], at + 1)
        arguments.append(text)
        rest = rest[at + 1 :].lstrip()
    return arguments


def test_logs_come_from_where_the_platform_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    log = str(tmp_path / "Library" / "Logs" / "reprise.log")
    assert Launchd().log_command(20, True) == ["tail", "-n", "20", "-F", log]
    journal = ["journalctl", "--user", f"--unit={UNIT}", "--no-pager", "--lines=20"]
    assert Systemd().log_command(20, False) == journal
    assert Systemd().log_command(20, True) == [*journal, "--follow"]


def test_the_command_is_the_link_on_path_that_an_update_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, links = tmp_path / "tools" / "bin", tmp_path / "links"
    own.mkdir(parents=True)
    links.mkdir()
    (own / "reprise").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(links))
    assert service.find_program() == str(own / "reprise")
    (links / "reprise").symlink_to(own / "reprise")
    assert service.find_program() == str(links / "reprise")
    (own / "reprise").unlink()
    assert main(["service", "install", "--print"]) == 2
