"""A release is refused with all that it lacks; its files are those of the commit, with whole addresses."""

import hashlib
import shutil
import subprocess
import tarfile
import zipfile
from datetime import date, timedelta
from email import message_from_bytes
from pathlib import Path

import pytest
import release

REPOSITORY = "https://example.org/someone/reprise"
VERSION = "9.9.9"
TODAY = date(2031, 5, 6)
CHANGES = """# Changelog

## Unreleased: 9.9.9

It is
short.

- [More](docs/a.md) of
  the same,
  1.5 times.
- Other.

      code
      more

| a |
|---|
| b |

### Added

- A detail.
"""
NOTES = """It is short.

- [More](docs/a.md) of the same, 1.5 times.
- Other.

      code
      more

| a |
|---|
| b |"""
LEFT_OUT = (
    ".git",
    ".venv",
    "__pycache__",
    "build",
    "node_modules",
    "models",
    "runs",
    ".*_cache",
    "*.egg-info",
)


def git(*arguments: str) -> None:
    who = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a repository with what a release of VERSION needs, without the code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "config/version.py").write_text('"""The version."""\n\nVERSION = "9.9.9.dev0"\n\nOTHER = 1\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "README.md").write_text(
        f"# It\n\n    {release.INSTALL}\n\n## Figures\n\n3 times, {TODAY}\n\n## Limits\n\n2001-01-01\n"
    )
    (tmp_path / "docs/a.md").write_text("# A page\n")
    git("init", "--quiet")
    monkeypatch.setattr(release, "GENERATORS", ())
    release.prepare(VERSION, TODAY)
    commit()
    return tmp_path


def commit() -> None:
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", "all")


def found(version: str = VERSION, repository: str | None = REPOSITORY, today: date = TODAY) -> list[str]:
    return list(release.problems(version, repository, today))


def test_what_was_prepared_and_committed_can_be_released(checkout: Path) -> None:
    assert found() == []
    assert found(today=TODAY + timedelta(release.MAX_AGE_DAYS)) == []
    assert (
        checkout / "config/version.py"
    ).read_text() == '"""The version."""\n\nVERSION = "9.9.9"\n\nOTHER = 1\n'


def test_the_notes_are_the_short_text_of_the_section_without_breaks_in_paragraphs(checkout: Path) -> None:
    assert release.notes((checkout / "CHANGELOG.md").read_text(), VERSION) == NOTES


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("new.txt", "", "the tree is not clean"),
        ("config/version.py", 'VERSION = "9.9.9.dev0"\n', "config/version.py has another version"),
        (
            "CHANGELOG.md",
            f"## {VERSION} - {TODAY}\n\n",
            "CHANGELOG.md has no text under `## 9.9.9 - 2031-05-06`",
        ),
        ("CHANGELOG.md", f"## {VERSION}\n\n- More.\n", "CHANGELOG.md has no text under"),
        (
            "CHANGELOG.md",
            f"## {VERSION} - {TODAY}\n\n### Added\n\n- More.\n",
            "CHANGELOG.md has no text under",
        ),
        ("CHANGELOG.md", f"## Unreleased\n\n## {VERSION} - {TODAY}\n\n- More.\n", "changes under Unreleased"),
        ("CHANGELOG.md", f"## {VERSION} - 2031-05-08\n\n- More.\n", "CHANGELOG.md has a date in the future"),
        (
            "README.md",
            f"{release.INSTALL}\n\n## Figures\n\n3, 2031-05-06, and 4, 2031-01-01\n",
            "README.md has figures of 2031-01-01",
        ),
        ("README.md", f"{release.INSTALL}\n", "README.md has figures of None"),
        ("README.md", f"uv tool install .\n\n## Figures\n\n{TODAY}\n", "its readers have no clone"),
        ("docs/a.md", "`reprise-mlx` (not released yet)\n", "docs/a.md says `not released yet`"),
        ("CHANGELOG.md", f"## {VERSION} - {TODAY}\n\nA workflow, not run\nyet\n", "says `not run yet`"),
        ("CONTRIBUTING.md", "The image is not tried yet.\n", "CONTRIBUTING.md says `not tried yet`"),
        ("docs/a.md", "`uv add git+https://HOST/someone/reprise.git`\n", "docs/a.md says HOST/:"),
        ("docs/a.md", "`brew install OWNER/tap/reprise-mlx`\n", "docs/a.md says OWNER/tap:"),
    ],
)
def test_what_a_release_lacks_is_named(checkout: Path, file: str, text: str, problem: str) -> None:
    (checkout / file).write_text(text)
    if file != "new.txt":
        commit()
    (said,) = found()
    assert problem in said


def test_everything_that_it_lacks_is_named_at_once(checkout: Path) -> None:
    git("tag", "vnext")
    (checkout / "docs/a.md").write_text("# Another page\n")
    commit()
    assert [len(found(version, None)) for version in ("next", "v9.9.9", "9.9.9rc1")] == [5, 4, 4]


def test_a_version_can_be_prepared_again_on_a_later_day(checkout: Path) -> None:
    release.prepare(VERSION, TODAY + timedelta(1))
    assert f"\n## {VERSION} - 2031-05-07\n" in (checkout / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("version", "more", "message"),
    [
        ("10.0.0", "", "has 0 sections that are Unreleased or 10.0.0"),
        (VERSION, "\n## Unreleased\n", "has 2 sections that are Unreleased or 9.9.9"),
        ("v9.9.9", "", "v9.9.9 is not a version such as 0.2.0"),
    ],
)
def test_nothing_is_written_if_a_version_cannot_be_prepared(
    checkout: Path, version: str, more: str, message: str
) -> None:
    with (checkout / "CHANGELOG.md").open("a") as changelog:
        changelog.write(more)
    before = [(checkout / name).read_text() for name in ("CHANGELOG.md", "config/version.py")]
    with pytest.raises(SystemExit, match=message):
        release.prepare(version, TODAY)
    assert [(checkout / name).read_text() for name in ("CHANGELOG.md", "config/version.py")] == before


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        (None, None),
        ("/srv/reprise", None),
        ("https://someone:secret@example.org/someone/reprise.git", None),
        *((remote, REPOSITORY) for remote in (REPOSITORY, f"{REPOSITORY}.git")),
        ("git@example.org:someone/reprise.git", REPOSITORY),
        ("ssh://git@example.org/someone/reprise", REPOSITORY),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_the_page_of_the_repository_is_that_of_its_remote(remote: str | None, page: str | None) -> None:
    if remote:
        git("remote", "add", "origin", remote)
    assert release.find_repository() == page


def test_pages_say_what_is_not_released_yet_until_there_is_a_release() -> None:
    """Afterwards scripts/release refuses a page that still says it."""
    headings = release.HEADING.findall((release.ROOT / "CHANGELOG.md").read_text())
    is_released = any(release.DATE.search(heading) for heading in headings)
    found = release.NOT_YET.search((release.ROOT / "docs/install.md").read_text())
    assert bool(found) is not is_released


def test_relative_links_lead_to_the_files_of_the_version() -> None:
    page = "[a](docs/a.md#b) ![c](docs/c.png) [d](https://d.example) [e](#e) `x](y`"
    assert release.with_addresses(page, VERSION, "R") == (
        "[a](R/blob/v9.9.9/docs/a.md#b) ![c](R/raw/v9.9.9/docs/c.png) [d](https://d.example) [e](#e) `x](y`"
    )


@pytest.mark.slow
def test_a_made_up_version_is_released_from_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(release.ROOT, clone, ignore=ignored, symlinks=True)
    monkeypatch.chdir(clone)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    today = date.today()  # noqa: DTZ011
    readme = Path("README.md").read_text()
    before, figures = readme.split("\n## Figures\n", 1)
    Path("README.md").write_text(f"{before}\n## Figures\n{release.DATE.sub(str(today), figures)}")
    for page in release.published_pages():
        text = release.NOT_YET.sub("done", page.read_text()).replace("uv tool install . ", release.INSTALL)
        page.write_text(release.PLACEHOLDER.sub("someone/reprise", text))
    git("init", "--quiet")
    script = [release.sys.executable, "scripts/release.py", VERSION, "--repository", f"{REPOSITORY}/"]
    subprocess.run([*script, "--prepare"], check=True)
    commit()
    left = clone / "build/release/reprise_mlx-1.0.0.tar.gz"
    left.parent.mkdir(parents=True)
    left.touch()
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"git push origin v{VERSION}\n" in done.stdout
    names = [f"reprise_mlx-{VERSION}-py3-none-any.whl", f"reprise_mlx-{VERSION}.tar.gz"]
    assert sorted(file.name for file in left.parent.iterdir()) == ["notes.md", "reprise-mlx.rb", *names]
    assert release.run("git", "status", "--porcelain") == release.run("git", "tag") == ""

    wheel = left.parent / names[0]
    metadata = message_from_bytes(zipfile.ZipFile(wheel).read(f"reprise_mlx-{VERSION}.dist-info/METADATA"))
    assert f"Changelog, {REPOSITORY}/blob/v{VERSION}/CHANGELOG.md" in metadata.get_all("Project-URL")
    assert f"({REPOSITORY}/blob/v{VERSION}/docs/install.md)" in metadata.get_payload()
    assert not release.LINK.search(metadata.get_payload())
    with tarfile.open(left.parent / names[1]) as packed:
        assert f"reprise_mlx-{VERSION}/reprise/server/app.py" in packed.getnames()
    formula = (left.parent / "reprise-mlx.rb").read_text()
    assert f'url "{REPOSITORY}/releases/download/v{VERSION}/{wheel.name}"' in formula
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in formula
    notes = (left.parent / "notes.md").read_text()
    assert f"({REPOSITORY}/blob/v{VERSION}/CHANGELOG.md)" in notes
    assert "### Added" not in notes
