"""The page of architectures has all that mlx-lm has, with what each gets or why not."""

import pytest
from architectures_page import COLUMNS, PAGE, explain, try_in_child, write_page

from tests.tiny_models import architectures


def test_every_architecture_of_the_installed_mlx_lm_is_on_the_page():
    rows = {line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text(encoding="utf-8").splitlines()}
    missing = set(architectures()) - rows
    assert not missing, "run .venv/bin/python scripts/architectures_page.py"


def test_reasons_are_numbered_once_and_said_in_a_sentence():
    everything = dict.fromkeys(COLUMNS, "yes") | {"exact": "all"}
    page = write_page(
        {
            "first": everything | {"exact_together": "2, 3: Many differ."},
            "second": {"batch": "no: It is new.", "drafts": "yes", "prefix": "no: It fails."},
            "third": {"batch": "not tried: It is missing."},
            "fourth": everything | {"batch": "no: It is new.", "exact_together": "-"},
        }
    )
    assert "| first | yes | yes | all | 2, 3 (1) | yes | yes |" in page
    assert "| fourth | no (2) | yes | all | - | yes | yes |" in page
    assert "| second | no (2) | yes | - | - | no (3) | - |" in page
    assert "| third | not tried (4) | - | - | - | - | - |\n\n## Reasons\n\n1. Many differ.\n2. It" in page
    assert "4. It is missing.\n\n## Other names\n" in page
    assert "3 could be tried. 1 of them share forward passes, 3 draft, 1 are" in page


def test_a_fault_becomes_a_sentence():
    assert explain("the model keeps a NewCache, which rows cannot share") == (
        "It keeps a NewCache, which rows cannot share."
    )
    assert explain("some fault\nin two lines") == "It fails: some fault."


@pytest.mark.parametrize("fault", ["raise SystemExit(3)", "os.abort()"])
def test_an_architecture_that_ends_the_process_is_on_the_page_too(fault, monkeypatch):
    monkeypatch.setattr("architectures_page._TRY", ["-c", f"import os; {fault}"])
    assert try_in_child("llama")["batch"] == "not tried: It crashes the process that tries it."


def test_an_architecture_that_hangs_is_on_the_page_too(monkeypatch):
    monkeypatch.setattr("architectures_page._TRY", ["-c", "import time; time.sleep(60)"])
    monkeypatch.setattr("architectures_page.TIMEOUT_S", 0.5)
    assert try_in_child("llama")["batch"] == "not tried: Trying it takes more than 0.5 s."
