"""Find one model's settings: the server's, overridden by the file's section [models."NAME"]."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reprise.config.setting import SettingsError, Value
from reprise.config.settings import GROUPS, SETTINGS, Settings
from reprise.config.unknown import explain_unknown

Section = Mapping[str, Value]
"""Values of a section's settings, by their names."""

OWN = (
    *("chat_template", "chat_template_kwargs", "trust_remote_code", "adapter_path", "draft_model"),
    *GROUPS["Windowed decoding"],
)
"""Settings that were chosen for the model that the server starts with. Others have them only by a section."""

PER_MODEL = frozenset(
    {
        *OWN,
        *GROUPS["Drafting"],
        *GROUPS["Draft model"],
        "sampling_defaults",
        "max_context_tokens",
        "kv_bits",
        "idle_unload_s",
        "max_rows",
        "max_queue",
        "prefill_chunk_tokens",
        "default_max_tokens",
        "prefix_cache_bytes",
    }
)
"""Settings that a section may set."""

DRAFT_TYPES_OF_MODELS = ("draft-model", "mtp", "eagle3", "dflash", "wedlm")
"""Draft types that not every model can have."""


def check_section(name: str, given: object) -> Section:
    """Return the settings of a model's section. Raises SettingsError for an unknown name or a wrong value."""
    where = f'[models."{name}"]'
    if not isinstance(given, dict):
        raise SettingsError(f"{where} must be a section of settings")
    for key in given:
        if key in SETTINGS and key not in PER_MODEL:
            raise SettingsError(f"{key} holds for the whole server: set it outside of {where}")
        if key not in SETTINGS:
            raise SettingsError(explain_unknown(f"setting {key} in {where}", key, PER_MODEL))
    try:
        return {key: SETTINGS[key].check(value) for key, value in given.items()}
    except SettingsError as fault:
        raise SettingsError(f"{fault} (set in {where})") from None


def settings_of(settings: Settings, sections: Mapping[str, Section], name: str) -> Settings:
    """Return the settings of one model.

    settings: the server's. sections: the sections of single models, by the model's name.
    name: the model's. The first model inherits all of the server's settings, other models all but those in
        OWN.
    Raises SettingsError if the section's values conflict with other settings.
    """
    values: dict[str, Any] = {}
    if name != settings.model_name:
        values = {own: SETTINGS[own].default for own in OWN}
        if settings.draft_type in DRAFT_TYPES_OF_MODELS:
            values["draft_type"] = "auto"
    values |= sections.get(name, {})
    try:
        return replace(settings, **values)
    except SettingsError as fault:
        raise SettingsError(f'{fault} (for [models."{name}"])') from None
