"""Forms, Dependabot's settings, citation and badges have what they need, and agree with pyproject.toml."""

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
import yaml

from tests.docs.test_pages import FLAG, command_flags

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

TEXT = {"type": "string", "minLength": 1}
FIELD = {
    "type": "object",
    "properties": {
        "type": {"enum": ["checkboxes", "dropdown", "input", "textarea"]},
        "id": {"type": "string", "pattern": "^[a-z_-]+$"},
        "attributes": {
            "type": "object",
            "properties": {
                "label": TEXT,
                "description": TEXT,
                "placeholder": TEXT,
                "render": TEXT,
                # YAML reads Yes and No as truth values, which GitHub refuses.
                "options": {"type": "array", "items": TEXT, "minItems": 2, "uniqueItems": True},
            },
            "required": ["label"],
            "additionalProperties": False,
        },
        "validations": {"type": "object", "properties": {"required": {"type": "boolean"}}},
    },
    "required": ["type", "id", "attributes"],
    "additionalProperties": False,
}
FORM = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "labels": {"type": "array", "items": TEXT},
        "body": {"type": "array", "items": FIELD, "minItems": 1},
    },
    "required": ["name", "description", "body"],
    "additionalProperties": False,
}
UPDATES = {
    "type": "object",
    "properties": {
        "version": {"const": 2},
        "updates": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["package-ecosystem", "directory", "schedule"],
                "properties": {
                    "schedule": {"properties": {"interval": {"enum": ["weekly"]}}, "required": ["interval"]}
                },
            },
        },
    },
    "required": ["version", "updates"],
}
CITATION = {
    "type": "object",
    "properties": {
        "cff-version": {"const": "1.2.0"},
        "message": TEXT,
        "title": {"const": "Reprise"},
        "type": {"const": "software"},
        "abstract": {"const": PROJECT["description"]},
        "authors": {"type": "array", "items": {"required": ["name"]}, "minItems": 1},
        "license": {"const": PROJECT["license"]},
        "keywords": {"const": PROJECT["keywords"]},
    },
    "required": ["cff-version", "message", "title", "authors"],
    # No version and no date: config/version.py and CHANGELOG.md have them.
    "additionalProperties": False,
}


def check(path: Path, schema: dict) -> dict:
    described = yaml.safe_load(path.read_text(encoding="utf-8"))
    jsonschema.validate(described, schema)
    return described


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_a_form_has_what_github_demands_and_names_flags_that_exist(form):
    fields = check(form, FORM)["body"]
    for unique in ([field["id"] for field in fields], [field["attributes"]["label"] for field in fields]):
        assert len(unique) == len({*unique})
    flags = set(re.findall(FLAG, form.read_text(encoding="utf-8")))
    assert flags - {"--model", "--prompt"} <= command_flags()


def test_a_bug_s_form_first_asks_for_what_doctor_shares():
    assert FORMS[0].name == "1-bug.yml"
    first = check(FORMS[0], FORM)["body"][0]
    assert "reprise doctor --share" in first["attributes"]["label"]
    assert first["validations"] == {"required": True}


def test_dependabot_looks_at_the_packages_and_the_actions():
    updates = check(GITHUB / "dependabot.yml", UPDATES)["updates"]
    assert {"pip", "github-actions"} <= {one["package-ecosystem"] for one in updates}


def test_the_citation_says_what_the_project_says():
    check(ROOT / "CITATION.cff", CITATION)


def test_the_site_says_what_the_project_says():
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)
    assert site["site_description"] == PROJECT["description"]


def test_the_badges_say_what_the_project_says():
    found = re.findall(r"!\[([^]]+)\]\(https://img\.shields\.io/badge/([^)]+)-[a-z]+\)", read_me())
    badges = {alt: unquote(said) for alt, said in found}
    versions = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python :: 3." in one]
    systems = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Operating System" in one}
    assert badges == {
        "Licence": f"licence-{PROJECT['license']}",
        "Python": f"Python-{versions[0]} to {versions[-1]}",
        "Systems": "runs on-macOS | Linux",
    }
    assert systems == {"X", "Linux"}


def read_me() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")
