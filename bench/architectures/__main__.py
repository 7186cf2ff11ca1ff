"""Try every architecture of mlx-lm and write docs/architectures.md: `python -m bench.architectures`.

With names as arguments, try only these and print what was found.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from bench.architectures.page import PAGE, Findings, try_architecture, write_page
from bench.architectures.tiny_models import architectures

TIMEOUT_S = 120
_TRY = ["-c", "import sys; from bench.architectures.__main__ import report; report(sys.argv[1])"]


def try_in_child(name: str) -> Findings:
    """Try an architecture in a process of its own, which may crash or hang."""
    try:
        done = subprocess.run(
            [sys.executable, *_TRY, name], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Findings(build=f"trying it takes more than {TIMEOUT_S} s")
    if done.returncode:
        return Findings(build=f"trying it ends the process with status {done.returncode}")
    found: Any = json.loads(done.stdout.splitlines()[-1])
    return Findings(**found)


def report(name: str) -> None:
    """Try an architecture and print what was found, as JSON."""
    print(json.dumps(asdict(try_architecture(name))))


def main() -> None:
    """Try the architectures that are named, or all."""
    given = sys.argv[1:]
    found = {}
    for name in given or architectures():
        found[name] = try_in_child(name)
        print(name, asdict(found[name]) if given else "", file=sys.stderr)
    if not given:
        PAGE.write_text(write_page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
