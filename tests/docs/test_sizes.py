"""What a reader can hold in mind: no file and no class of the product is longer than that."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "cli", "config", "drafters", "engine", "scripts", "server")
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]


def methods_of(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_have_at_most_400_lines_and_classes_at_most_25_methods(folder: str) -> None:
    found: list[str] = []
    for file in FILES:
        if file.relative_to(ROOT).parts[0] != folder:
            continue
        text = file.read_text(encoding="utf-8")
        found += [f"{file.name}: {text.count(chr(10))} lines"] * (text.count("\n") > 400)
        # Parsing takes longest, and most files have no class of that size.
        if text.count("\n    def ") + text.count("\n    async def ") > 25:
            nodes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
            found += [f"{file.name}: {node.name}" for node in nodes if methods_of(node) > 25]
    assert not found
