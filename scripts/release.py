"""Check what a release needs, and make its files in build/release. Nothing is tagged or pushed.

    scripts/release 0.2.0 --prepare   write the version, today's date and the generated pages into the tree
    scripts/release 0.2.0             check, then make sdist, wheel, Homebrew's formula and release notes

No file names the address of the repository, since a fork has another: the packages get it here.
"""

import argparse
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from homebrew_formula import render
from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("build", "release")
MAX_AGE_DAYS = 30
"""Age up to which the README's figures are published."""

NOT_YET = re.compile(r"(?i)not\s+(?:(?:released|run|tried)\s+yet|yet\s+(?:released|run|tried))")
"""What pages say of what waits for the release: ways to install, workflows, images."""

PLACEHOLDER = re.compile(r"\bHOST/|\bOWNER/(?:reprise|tap)\b")
"""What stands in pages until the repository has an owner and a host."""

INSTALL = "uv tool install reprise-mlx"
"""What README.md has to say: it is the package's page on the index, whose readers have no clone."""

NO_VERSION = "{} is not a version such as 0.2.0"

GENERATORS = (
    ("-m", "reprise.config.reference"),
    ("-m", "reprise.server.reference"),
    ("scripts/models_page.py",),
)
"""Those of docs/architectures.md take hours; a test says when they must run."""

WHEEL_TEST = ("-m", "pytest", "-q", "-m", "slow", "tests/end_to_end/clients/test_wheel.py")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
VERSION_LINE = re.compile(r'^VERSION = "(.*)"$', re.MULTILINE)
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
WRAP = re.compile(r"(?<!\n)\n(?!\n| {4}| *(?:[-*] |\d+\. |[|#>])) *")
"""An end of a line within a paragraph or an item; GitHub shows it as a break in a release's notes."""

DATE = re.compile(r"\d{4}-\d\d-\d\d")
LINK = re.compile(r"(!?)(\[[^]]*\])\((?![a-z]+:|#)([^)\s]+)\)")

NEXT = """\
reprise: {out} has what is published:
{files}

Nothing is tagged or pushed. If the workflows passed on this commit, publish it:

    git tag --annotate v{version} --message 'Reprise {version}'
    git push origin v{version}

.github/workflows/release.yml makes these files again, and publishes them with PyPI's package and the images.
"""


def prepare(version: str, today: date) -> None:
    """Write the version, the date of its section in the changelog, and the pages that name the version.

    A version that was prepared before gets today's date. Without a section for it nothing is written.
    """
    if not is_version(version):
        sys.exit(f"reprise: {NO_VERSION.format(version)}")
    changelog, place = Path("CHANGELOG.md"), Path("config", "version.py")
    heading = rf"(?m)^## (?:Unreleased.*|{re.escape(version)} - {DATE.pattern})$"
    text, changed = re.subn(heading, f"## {version} - {today}", changelog.read_text())
    if changed != 1:
        sys.exit(f"reprise: CHANGELOG.md has {changed} sections that are Unreleased or {version}, not one")
    changelog.write_text(text)
    place.write_text(VERSION_LINE.sub(f'VERSION = "{version}"', place.read_text()))
    generate_pages()


def is_version(text: str) -> bool:
    """Return whether a text is three numbers with dots."""
    return bool(re.fullmatch(r"\d+\.\d+\.\d+", text))


def generate_pages() -> None:
    """Write the generated pages anew."""
    for command in GENERATORS:
        run(sys.executable, *command)


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page of Markdown by their headings."""
    _, *parts = HEADING.split(page)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def notes(changelog: str, version: str) -> str | None:
    """Return what a version's dated section says before its first ###, or None if there is none."""
    found = sections(changelog)
    dated = [heading for heading in found if re.fullmatch(rf"{re.escape(version)} - {DATE.pattern}", heading)]
    return WRAP.sub(" ", found[dated[0]].partition("\n### ")[0].strip()) or None if dated else None


def problems(version: str, repository: str | None, today: date) -> Iterator[str]:
    """Yield what keeps this checkout from being released as a version, and how to mend it."""
    if not is_version(version):
        yield NO_VERSION.format(version)
    if not repository:
        yield "no remote `origin` with an https or ssh address: give --repository https://github.com/OWNER/NAME"
    if run("git", "status", "--porcelain"):
        yield "the tree is not clean: commit or remove what `git status` shows"
    tag = f"v{version}"
    if run("git", "tag", "--list", tag) and run("git", "rev-parse", f"{tag}^{{}}") != run(
        "git", "rev-parse", "HEAD"
    ):
        yield f"the tag {tag} is of another commit"
    found = VERSION_LINE.search(Path("config", "version.py").read_text())
    if not found or found[1] != version:
        yield f"config/version.py has another version: run scripts/release {version} --prepare, and commit"
    yield from _problems_of_pages(version, today)


def _problems_of_pages(version: str, today: date) -> Iterator[str]:
    changelog = Path("CHANGELOG.md").read_text()
    section = notes(changelog, version)
    if not section:
        yield (
            f"CHANGELOG.md has no text under `## {version} - {today}` before its first ###, for the notes: "
            "--prepare writes the heading"
        )
    headings = HEADING.findall(changelog)
    if any("unreleased" in heading.lower() for heading in headings):
        yield "CHANGELOG.md has changes under Unreleased: they belong to this release, or come after it"
    # Tomorrow is today elsewhere.
    if any(later > str(today + timedelta(1)) for heading in headings for later in DATE.findall(heading)):
        yield "CHANGELOG.md has a date in the future"
    dates = DATE.findall(sections(Path("README.md").read_text()).get("Figures", ""))
    oldest = min(map(date.fromisoformat, dates), default=None)
    if oldest is None or (today - oldest).days > MAX_AGE_DAYS:
        yield (
            f"README.md has figures of {oldest}, more than {MAX_AGE_DAYS} days ago: run `reprise bench all`, "
            "and measure those in sentences again"
        )
    if INSTALL not in Path("README.md").read_text():
        yield f"README.md, the page of the package, does not say `{INSTALL}`: its readers have no clone"
    for page in published_pages():
        text = page.read_text()
        for said in sorted({" ".join(found.split()) for found in NOT_YET.findall(text)}):
            yield f"{page} says `{said}`: that will be wrong"
        for said in sorted({*PLACEHOLDER.findall(text)}):
            yield f"{page} says {said}: write who has the repository, the image and the tap, and where"


def published_pages() -> list[Path]:
    """Return the pages that may not say what a release makes wrong."""
    return [*sorted(Path().glob("*.md")), *sorted(Path("docs").glob("*.md"))]


def make(version: str, repository: str) -> None:
    """Build sdist, wheel, formula and notes into build/release from the files of the commit."""
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    out = str(OUT.resolve())
    with TemporaryDirectory() as temporary:
        sources = Path(temporary)
        archive = sources.with_suffix(".tar")
        try:
            run("git", "archive", "--output", str(archive), "HEAD")
            run("tar", "-xf", str(archive), "-C", temporary)
        finally:
            archive.unlink(missing_ok=True)
        add_addresses(sources, version, repository)
        run(sys.executable, "-c", BUILD.format("sdist"), out, cwd=sources)
    (sdist,) = OUT.glob("*.tar.gz")
    with TemporaryDirectory() as temporary:
        run("tar", "-xf", str(sdist), "-C", temporary)
        (sources,) = Path(temporary).iterdir()
        run(sys.executable, "-c", BUILD.format("wheel"), out, cwd=sources)
    (wheel,) = OUT.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [one for one in packed.namelist() if one.endswith(".dist-info/METADATA")]
        # Raises where the index would refuse it.
        Metadata.from_email(packed.read(name))
    address = f"{repository}/releases/download/v{version}/{wheel.name}"
    (OUT / "reprise-mlx.rb").write_text(render(wheel, address, repository))
    text = notes(Path("CHANGELOG.md").read_text(), version) or ""
    (OUT / "notes.md").write_text(with_addresses(text, version, repository) + "\n")


def add_addresses(sources: Path, version: str, repository: str) -> None:
    """Write the repository's address into sources: the project's links, and those of the README."""
    readme = sources / "README.md"
    readme.write_text(with_addresses(readme.read_text(), version, repository))
    urls = {
        "Homepage": repository,
        "Documentation": f"{repository}/tree/v{version}/docs",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    with (sources / "pyproject.toml").open("a") as project:
        project.write("\n[project.urls]\n")
        project.writelines(f'{label} = "{url}"\n' for label, url in urls.items())


def with_addresses(page: str, version: str, repository: str) -> str:
    """Return a page of the root whose relative links lead to the files of a version in the repository."""

    def whole(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}{link[2]}({repository}/{kind}/v{version}/{link[3]})"

    return LINK.sub(whole, page)


def find_repository() -> str | None:
    """Return the https address of the remote `origin`, or None if it has no https or ssh address."""
    remotes = run("git", "remote").split()
    url = run("git", "remote", "get-url", "origin") if "origin" in remotes else ""
    found = re.fullmatch(r"(?:https://|ssh://git@|git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?", url)
    return f"https://{found[1]}/{found[2]}" if found else None


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command and return what it printed; if it fails, print that and exit with status 1."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"reprise: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Prepare a release, or check it and make its files."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__, formatter_class=layout)
    parser.add_argument("version", metavar="VERSION", help="such as 0.2.0")
    parser.add_argument("--prepare", action="store_true", help="write version and date into the files")
    parser.add_argument("--repository", metavar="URL", help="its page; by default that of the remote origin")
    given = parser.parse_args()
    os.chdir(ROOT)
    today = date.today()  # noqa: DTZ011
    if given.prepare:
        prepare(given.version, today)
        print("reprise: look at `git diff` and commit it; then run scripts/release without --prepare")
        return
    repository = (given.repository or find_repository() or "").rstrip("/")
    found = list(problems(given.version, repository, today))
    if not found:
        generate_pages()
        stale = run("git", "diff", "--name-only")
        found += [f"{page} was not up to date, and is written anew: commit it" for page in stale.splitlines()]
    if found:
        sys.exit("\n".join(f"reprise: {problem}" for problem in found))
    run(sys.executable, *WHEEL_TEST)
    make(given.version, repository)
    files = "\n".join(f"    {file.name}" for file in sorted(OUT.iterdir()))
    print(NEXT.format(out=OUT, files=files, version=given.version))


if __name__ == "__main__":
    main()
