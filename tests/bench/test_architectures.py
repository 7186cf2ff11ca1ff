"""The page of architectures has all that mlx-lm has, with what each gets or why not."""

import pytest

from bench.architectures.__main__ import try_in_child
from bench.architectures.page import PAGE, WIDTHS, Findings, write_page
from bench.architectures.tiny_models import architectures


def test_every_architecture_of_the_installed_mlx_lm_is_on_the_page():
    rows = {line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text(encoding="utf-8").splitlines()}
    missing = set(architectures()) - rows
    assert not missing, "run .venv/bin/python -m bench.architectures"


def test_reasons_are_numbered_once_and_said_in_a_sentence():
    unknown = "the model keeps a NewCache, which rows cannot share"
    page = write_page(
        {
            "first": Findings(exact=WIDTHS, exact_together=[2, 3]),
            "second": Findings(batch=unknown, exact=[], prefix="some fault\nin two lines"),
            "third": Findings(batch=unknown, drafts="KVCache: rejected tokens leave a trace"),
            "fourth": Findings(build="it is missing"),
            "three": Findings(by_layer=True),
        }
    )
    assert "| first | yes | yes | all | 2, 3 (1) | yes | yes |" in page
    assert "| second | no (3) | yes | none (4) | - | no (5) | yes |" in page
    assert "| third | no (3) | no (6) | - | - | yes | yes |" in page
    assert "| fourth | not tried (2) | - | - | - | - | - |" in page
    assert "| three | yes (7) |" in page
    assert "7. Its attention layers run once for each group" in page
    assert "5. It fails: some fault.\n" in page


@pytest.mark.parametrize("fault", ["raise SystemExit(3)", "os.abort()"])
def test_an_architecture_that_ends_the_process_is_on_the_page_too(fault, monkeypatch):
    monkeypatch.setattr("bench.architectures.__main__._TRY", ["-c", f"import os; {fault}"])
    assert "trying it ends the process" in str(try_in_child("llama").build)


def test_an_architecture_that_hangs_is_on_the_page_too(monkeypatch):
    monkeypatch.setattr("bench.architectures.__main__._TRY", ["-c", "import time; time.sleep(60)"])
    monkeypatch.setattr("bench.architectures.__main__.TIMEOUT_S", 0.5)
    assert "takes more than 0.5 s" in str(try_in_child("llama").build)
