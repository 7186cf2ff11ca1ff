"""Merge settings from defaults, a file, the environment and flags, and remember where each came from."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reprise.config.per_model import Section, check_section, settings_of
from reprise.config.setting import Setting, SettingsError
from reprise.config.settings import SETTINGS, Settings
from reprise.config.unknown import explain_unknown

CONFIG_VARIABLE = "REPRISE_CONFIG"
SECTIONS = "models"
"""The table of a settings file that has a section for each model."""
_PREFIX = "REPRISE_"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. name: the file, the variable or the flag; empty for a default."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings in force, and the origin of each value. sections: what the file sets for single models."""

    settings: Settings
    origins: Mapping[str, Origin]
    sections: Mapping[str, Section] = field(default_factory=dict)


def resolve(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Resolved:
    """Merge all sources. Later ones override earlier ones: defaults, file, environment, flags.

    flags: the text given for each setting, by the setting's name (max_rows, not --max-rows).
    environment: all variables; those that do not start with REPRISE_ are ignored.
    file: a TOML file; if None, the one that REPRISE_CONFIG names, if any.
    Raises SettingsError for an unknown key or variable, an unreadable file or an invalid value.
    """
    environment = environment or {}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, Origin("default"))

    def take(known: Setting, given: object, origin: Origin) -> None:
        from_file = origin.source == "file"
        try:
            values[known.name] = known.check(given) if from_file else known.parse(str(given))
        except SettingsError as error:
            raise SettingsError(f"{error} (set by {origin.name})") from None
        origins[known.name] = origin

    if file is None and environment.get(CONFIG_VARIABLE):
        # Not Path's, which raises RuntimeError for an unknown user.
        file = Path(os.path.expanduser(environment[CONFIG_VARIABLE]))  # noqa: PTH111
    sections: dict[str, Section] = {}
    if file is not None:
        table = _read(file)
        sections = _sections(table.pop(SECTIONS, {}), file)
        for name, given in table.items():
            take(SETTINGS[name], given, Origin("file", str(file)))
    for name, given in _from_variables(environment).items():
        take(SETTINGS[name], given, Origin("environment", SETTINGS[name].variable))
    for name, given in (flags or {}).items():
        take(SETTINGS[name], given, Origin("flag", SETTINGS[name].flag))
    settings = Settings(**values)
    for name in sections:
        settings_of(settings, sections, name)
    return Resolved(settings, origins, sections)


def _read(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid TOML: {error}") from None
    for key in table:
        if key not in SETTINGS and key != SECTIONS:
            raise SettingsError(explain_unknown(f"setting {key} in {file}", key, SETTINGS))
    return table


def _sections(given: object, file: Path) -> dict[str, Section]:
    """Return the settings in the sections of a file, by the models' names. Raises SettingsError."""
    if not isinstance(given, dict):
        raise SettingsError(f'{SECTIONS} in {file} must be sections such as [models."qwen3-4b"]')
    return {name: check_section(name, section) for name, section in given.items()}


def _from_variables(environment: Mapping[str, str]) -> dict[str, str]:
    by_variable = {known.variable: name for name, known in SETTINGS.items()}
    texts = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            what, known = f"variable {variable} in the environment", (*by_variable, CONFIG_VARIABLE)
            raise SettingsError(explain_unknown(what, variable, known, _PREFIX))
        texts[by_variable[variable]] = text
    return texts
