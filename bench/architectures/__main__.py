"""Try every architecture of mlx-lm and write docs/architectures.md: `python -m bench.architectures`.

With a name as argument, try only this one, in this process, and print what was found.
"""

import json
import subprocess
import sys
from dataclasses import asdict

from bench.architectures.page import PAGE, Findings, try_architecture, write_page
from bench.architectures.tiny_models import architectures

TIMEOUT_S = 120
_TRY = ["-m", "bench.architectures"]


def try_in_child(name: str) -> Findings:
    """Try an architecture in a process of its own, which may crash or hang."""
    command = [sys.executable, *_TRY, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired:
        return Findings(build=f"trying it takes more than {TIMEOUT_S} s")
    except subprocess.CalledProcessError as fault:
        return Findings(build=f"trying it ends the process with status {fault.returncode}")
    return Findings(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Try the architecture that is named, or all."""
    if len(sys.argv) > 1:
        print(json.dumps(asdict(try_architecture(sys.argv[1]))))
        return
    found = {}
    for name in architectures():
        print(name, file=sys.stderr)
        found[name] = try_in_child(name)
    PAGE.write_text(write_page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
