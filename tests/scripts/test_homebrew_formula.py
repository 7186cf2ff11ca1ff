"""The formula for Homebrew names the wheel by its digest, and is Ruby."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from homebrew_formula import render

from reprise.config.version import DISTRIBUTION, VERSION


def formula(folder: Path) -> str:
    wheel = folder / f"{DISTRIBUTION.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return render(wheel, f"https://example.org/{wheel.name}", "https://example.org")


def test_it_names_the_wheel_its_version_and_its_digest(tmp_path: Path) -> None:
    text = formula(tmp_path)
    assert text.startswith(f"class {DISTRIBUTION.title().replace('-', '')} < Formula")
    assert f'version "{VERSION}"' in text
    assert f'sha256 "{hashlib.sha256(b"a wheel").hexdigest()}"' in text
    assert 'shell_output("#{bin}/reprise --version")' in text


@pytest.mark.skipif(not shutil.which("ruby"), reason="needs ruby; macOS has it")
def test_ruby_accepts_it(tmp_path: Path) -> None:
    file = tmp_path / "reprise-mlx.rb"
    file.write_text(formula(tmp_path))
    done = subprocess.run(["ruby", "-wc", str(file)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Syntax OK\n", "")
