"""Print a Homebrew formula that installs a wheel of Reprise, for the folder Formula/ of a tap.

    uv build --wheel
    python scripts/homebrew_formula.py dist/*.whl --url URL --homepage URL >reprise-mlx.rb

URL is where the wheel will be downloaded from. The dependencies are wheels from the package index, since MLX
is not built from source. So the formula is for a tap, not for homebrew-core.
"""

import argparse
import hashlib
from pathlib import Path

PYTHON = "3.13"

_FORMULA = """\
class RepriseMlx < Formula
  desc "OpenAI-compatible inference server for Apple Silicon"
  homepage "{homepage}"
  url "{url}", using: :nounzip
  version "{version}"
  sha256 "{sha256}"

  depends_on arch: :arm64
  depends_on :macos
  depends_on "python@{python}"

  def install
    libexec.install Dir["*.whl"]
    bin.install_symlink libexec/"venv/bin/reprise"
  end

  # Not in install: there Homebrew rewrites library paths, for which wheels leave no room.
  def post_install
    rm_r(libexec/"venv") if (libexec/"venv").exist?
    system Formula["python@{python}"].opt_bin/"python{python}", "-m", "venv", libexec/"venv"
    system libexec/"venv/bin/pip", "install", *Dir[libexec/"*.whl"]
  end

  service do
    run [opt_bin/"reprise", "serve"]
    keep_alive successful_exit: false
    process_type :interactive
    log_path var/"log/reprise.log"
    error_log_path var/"log/reprise.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/reprise --version")
  end
end
"""


def render(wheel: Path, url: str, homepage: str) -> str:
    """Return the formula. url: where the wheel is; homepage: what Homebrew shows as the project's page."""
    _, version, *_ = wheel.name.split("-")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return _FORMULA.format(url=url, homepage=homepage, version=version, sha256=sha256, python=PYTHON)


if __name__ == "__main__":
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--url", required=True, help="address of the wheel")
    parser.add_argument("--homepage", required=True, help="address of the project's page")
    given = parser.parse_args()
    print(render(given.wheel, given.url, given.homepage), end="")
