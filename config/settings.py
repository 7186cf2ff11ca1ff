"""Every setting there is: flags, variables, `reprise config` and help pages are made from this list."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_type_hints

from config.setting import Setting, SettingsError, described, setting

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "demo_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a person chose before the server started. Checked when made, never changed after.

    Raises SettingsError for a value of a wrong type or out of its range.
    """

    model: str | None = setting(
        None,
        "Folder of the model to serve, or its name on the model hub; without one, the bundled small model.",
    )
    served_model_name: tuple[str, ...] = setting(
        (), "Another name that requests may give the model; may be given several times."
    )
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines in.")
    port: int = setting(8000, "Port to listen on; 0 takes any that is free.", at_least=0, at_most=65535)
    log_format: Literal["text", "json"] = setting("text", "How a line of the log is written.")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least important lines that the log still shows."
    )
    max_rows: int = setting(8, "Sequences decoded together in one batch.", at_least=1)
    max_queue: int = setting(256, "Requests that may wait for a row before new ones get a 429.", at_least=0)
    prefill_chunk_tokens: int = setting(
        256, "Prompt tokens fed in one step while nothing else is decoding.", at_least=1
    )
    step_token_budget: int = setting(
        128, "Tokens that a step may feed while rows decode; prefill gets what they leave.", at_least=2
    )
    max_context_tokens: int | None = setting(
        None, "Longest prompt and answer together; without it, what the model was made for.", at_least=2
    )
    default_max_tokens: int | None = setting(
        None, "Longest answer where the request sets none; without it, all the room left.", at_least=1
    )
    max_n: int = setting(8, "Most choices that one request may ask for with n.", at_least=1)
    max_body_bytes: int = setting(8 * 2**20, "Largest request body; a larger one gets a 413.", at_least=1)
    keep_alive_s: float = setting(
        10.0, "Seconds without anything to send before a stream gets a comment.", at_least=0.01
    )
    drain_s: float = setting(10.0, "Seconds that running requests get to finish at shutdown.", at_least=0)
    prefix_cache_bytes: int = setting(
        256 * 2**20, "Memory for the caches of earlier prompts; 0 switches it off.", at_least=0
    )

    def __post_init__(self) -> None:
        for name, known in SETTINGS.items():
            object.__setattr__(self, name, known.check(getattr(self, name)))
        if self.step_token_budget <= self.max_rows:
            raise SettingsError(
                f"step_token_budget is {self.step_token_budget}; it must be above max_rows, "
                f"which is {self.max_rows}, or prompts would never get a turn while rows decode"
            )

    @property
    def model_source(self) -> str:
        """What to load: the model that was asked for, or the bundled one."""
        return str(BUNDLED_MODEL) if self.model is None else self.model


def _known() -> dict[str, Setting]:
    types = get_type_hints(Settings)
    return {f.name: described(f.name, types[f.name], f.default, dict(f.metadata)) for f in fields(Settings)}


SETTINGS: Mapping[str, Setting] = MappingProxyType(_known())
"""Every setting by name, in the order in which they are declared."""
