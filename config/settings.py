"""Every setting there is: flags, variables, `reprise config` and help pages are made from this list."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_type_hints

from config.access import check_access
from config.setting import Setting, SettingsError, described, setting


def default_calibration_file() -> str:
    """Where what steps cost is kept: the user's cache folder, as the XDG directories have it."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "reprise" / "costs.json")


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
    insecure: bool = setting(False, "Let other machines, or web pages of any site, in without an API key.")
    api_key: tuple[str, ...] = setting(
        (),
        "Key that clients must send; may be given several times. Others on the machine see flags; better "
        "the variable or a file.",
        secret=True,
    )
    api_key_file: str | None = setting(
        None, "File with keys that clients must send, one in each line; lines that begin with # are comments."
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "Another name that clients on this machine may call the server by, as behind a proxy; may be given "
        "several times.",
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Site whose web pages may use the server, such as https://chat.example.com, or * for all; may be "
        "given several times.",
    )
    port: int = setting(8000, "Port to listen on; 0 takes any that is free.", at_least=0, at_most=65535)
    log_format: Literal["text", "json"] = setting("text", "How a line of the log is written.")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least important lines that the log still shows."
    )
    log_prompts: bool = setting(False, "Write into the log what is asked and answered, too.")
    record: str | None = setting(
        None,
        "File to which every finished answer is added with what was asked, as JSON lines for reprise bench; "
        "only its owner may read it.",
    )
    record_bytes: int = setting(
        2**30, "Most bytes of that file; when it has them, nothing more is recorded.", at_least=1
    )
    trust_remote_code: bool = setting(
        False, "Run Python code that comes in the model's folder, where the model wants that."
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
    body_timeout_s: float = setting(
        60.0, "Seconds that a client may take to send a request; a slower one gets a 408.", at_least=0.01
    )
    keep_alive_s: float = setting(
        10.0, "Seconds without anything to send before a stream gets a comment.", at_least=0.01
    )
    drain_s: float = setting(10.0, "Seconds that running requests get to finish at shutdown.", at_least=0)
    memory_bytes: int | None = setting(
        None,
        "Memory for weights, keys and values, and kept prompts together; without it, nine tenths of what a "
        "GPU recommends, or three quarters of the machine's memory.",
        at_least=1,
    )
    stall_seconds: float = setting(
        120.0,
        "Seconds without a token or a piece of a prompt, while requests wait, after which /health says 503.",
        at_least=0.1,
    )
    prefix_cache_bytes: int | None = setting(
        None,
        "Memory for the caches of earlier prompts; 0 switches it off. Without it, a quarter of what weights "
        "leave; rows that need it get it back.",
        at_least=0,
    )
    prefix_cache_dir: str | None = setting(
        None, "Folder in which those caches are kept too, so that a restart does not forget long prompts."
    )
    prefix_cache_dir_bytes: int = setting(
        8 * 2**30, "Most bytes in that folder; what was used least recently is deleted.", at_least=1
    )
    response_store_bytes: int = setting(
        64 * 2**20,
        "Memory for what /v1/responses keeps, so that requests can continue it; 0 keeps nothing.",
        at_least=0,
    )
    kv_bits: int | None = setting(
        None, "Bits that keys and values are quantised to, 4 or 8; without it they are not.", at_least=4
    )
    draft_type: Literal["auto", "none", "ngram-simple", "ngram-mod", "suffix", "draft-model"] = setting(
        "auto", "Where drafts come from, unless a request says otherwise."
    )
    draft_model: str | None = setting(
        None, "Folder or name of a small model that drafts for the large one, with whatever vocabulary."
    )
    draft_translation: Literal["auto", "context", "naive", "shared", "none"] = setting(
        "auto",
        "How drafts get from another vocabulary into the model's: context, encoded behind the last tokens; "
        "naive, encoded alone; shared, of tokens that both have; none, as they are. auto: none where both "
        "have one vocabulary, else context.",
    )
    translation_prefix_tokens: int = setting(
        5,
        "Tokens before a draft that are encoded together with it, with context.",
        at_least=1,
        at_most=32,
    )
    num_draft_tokens: int = setting(
        31,
        "Most tokens of one draft; how many are used is decided by what they cost.",
        at_least=1,
        at_most=255,
    )
    ngram_size_min: int = setting(2, "Shortest match that ngram-simple drafts from.", at_least=1)
    ngram_size_max: int = setting(16, "Longest match that ngram-simple looks for.", at_least=1, at_most=64)
    ngram_mod_size: int = setting(16, "Tokens that ngram-mod hashes to find the next one.", at_least=1)
    ngram_table_entries: int = setting(
        4 * 2**20, "Entries of ngram-mod's table, 4 bytes each.", at_least=1024, at_most=2**31
    )
    ngram_table_file: str | None = setting(
        None, "File that ngram-mod's table is restored from at start and saved to on exit."
    )
    ngram_scope: Literal["process", "api-key"] = setting(
        "process", "Who shares what was said: everybody, or only those with the same API key."
    )
    gate: Literal["auto", "on", "off"] = setting(
        "auto",
        "Whether a prompt that repeats nothing is drafted for: auto begins with doubt and learns, on never "
        "drafts, off begins with trust.",
    )
    gate_threshold: float = setting(
        0.01, "Share of the prompt's 3-grams that must repeat for it to count as repetitive.", at_least=0
    )
    draft_overhead: float = setting(
        0.02, "Share by which drafting may ever make a request slower than plain decoding.", at_least=0
    )
    exact: bool = setting(
        False, "Draft only at widths whose logits equal those of width 1, tried byte by byte at load."
    )
    calibration_file: str | None = setting(
        default_calibration_file(), "File that keeps what steps cost on this machine; none keeps nothing."
    )
    recalibrate: bool = setting(False, "Measure what steps cost again, though it is known.")

    def __post_init__(self) -> None:
        for name, known in SETTINGS.items():
            object.__setattr__(self, name, known.check(getattr(self, name)))
        if self.step_token_budget <= self.max_rows:
            raise SettingsError(
                f"step_token_budget is {self.step_token_budget}; it must be above max_rows, "
                f"which is {self.max_rows}, or prompts would never get a turn while rows decode"
            )
        if self.kv_bits not in (None, 4, 8):
            raise SettingsError(f"kv_bits is {self.kv_bits}; it must be 4 or 8, or none")
        if self.prefix_cache_dir is not None and self.prefix_cache_bytes == 0:
            raise SettingsError("prefix_cache_dir needs prefix_cache_bytes above 0: what is read goes there")
        if self.ngram_size_min > self.ngram_size_max:
            raise SettingsError(
                f"ngram_size_min is {self.ngram_size_min}; it must not be above ngram_size_max, "
                f"which is {self.ngram_size_max}"
            )
        is_open_allowed = self.needs_key or self.insecure
        check_access(self.api_key, self.allowed_host, self.cors_origin, is_open_allowed)
        if self.draft_type == "draft-model" and self.draft_model is None:
            raise SettingsError("draft_type is draft-model, which needs a model: name one with draft_model")

    @property
    def needs_key(self) -> bool:
        """Whether clients must send a key."""
        return bool(self.api_key or self.api_key_file)

    @property
    def model_source(self) -> str:
        """What to load: the model that was asked for, or the bundled one."""
        return str(BUNDLED_MODEL) if self.model is None else self.model


def _known() -> dict[str, Setting]:
    types = get_type_hints(Settings)
    return {f.name: described(f.name, types[f.name], f.default, dict(f.metadata)) for f in fields(Settings)}


SETTINGS: Mapping[str, Setting] = MappingProxyType(_known())
"""Every setting by name, in the order in which they are declared."""
