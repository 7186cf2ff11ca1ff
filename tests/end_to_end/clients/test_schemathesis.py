"""Requests made from the server's own OpenAPI document: what it allows is answered, all else is a 400."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import serving

RUN_S = 60
"""Rounds of requests are drawn until then."""
DONE_WITHIN_S = 480
# A request may ask for a hundred answers, which take longer than the ten seconds that are waited by default.
# Without a limit of tokens one answer could take as long as the whole run.
FLAGS = ("--default-max-tokens", "16", "--max-context-tokens", "512")


@pytest.mark.slow
@pytest.mark.timeout(DONE_WITHIN_S + 120)
def test_the_document_is_true_to_the_server(server_folder: Path, tmp_path: Path):
    with serving(server_folder, *FLAGS) as (address, _):
        command = [
            "run",
            f"{address}/openapi.json",
            "--seed",
            "1",
            "--max-time",
            str(RUN_S),
            "--request-timeout",
            "120",
        ]
        done = subprocess.run(
            [Path(sys.executable).parent / "schemathesis", *command, "--continue-on-failure", "--no-color"],
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("schemathesis_hooks.py"))},
            capture_output=True,
            text=True,
            timeout=DONE_WITHIN_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
