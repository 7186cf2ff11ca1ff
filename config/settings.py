"""Declare every setting; flags, environment variables, `reprise config`, help and docs come from here."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_type_hints

from reprise.config.model_settings import RESERVED_TEMPLATE_KEYS, SPLIT, ModelSettings
from reprise.config.setting import Setting, SettingsError, make_setting, setting

AUTO = "auto"
"""For prefix_cache_dir: see there."""

KEY = re.compile(r"[!-~]+")
"""A key that an HTTP header can carry: visible ASCII characters without spaces."""
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def cache_folder() -> Path:
    """Return the folder of what is converted, learned and computed once (XDG_CACHE_HOME).

    Raises SettingsError without that variable if the user has no home folder, as in some containers.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "reprise"
    except RuntimeError:
        raise SettingsError("you have no home folder; set XDG_CACHE_HOME to a folder for caches") from None


def prefixes_folder() -> Path:
    """Return the folder in which `reprise serve` keeps prefixes, unless a setting names another."""
    return cache_folder() / "prefixes"


def costs_file() -> Path:
    """Return the file of what steps were learned to cost."""
    return cache_folder() / "step_costs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ModelSettings):
    """The values of all settings, validated on construction and never changed afterwards.

    The order is that of the groups. Raises SettingsError for a value of the wrong type or out of range.
    """

    host: str = setting("127.0.0.1", "Address to listen on. 0.0.0.0 lets other machines connect.")
    port: int = setting(8000, "Port to listen on. 0 chooses a free one.", at_least=0, at_most=65535)
    api_key: tuple[str, ...] = setting(
        (),
        "Key that clients must send; repeat the flag for several. @FILE stands for the keys in a file, one "
        "per line; lines that start with # are comments. Other users of this machine can see flags: prefer "
        "@FILE or the environment variable.",
        holds="secret",
    )
    insecure: bool = setting(
        False, "Let other machines, and the web pages of any site, use the server without an API key."
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "Additional host name that local clients may use for the server, for example behind a proxy; "
        "repeat the flag for several.",
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Site whose web pages may use the server, such as https://chat.example.com, or * for every site; "
        "repeat the flag for several.",
    )
    max_rows: int = setting(8, "Maximum sequences in the batch.", at_least=1)
    max_queue: int = setting(
        256, "Maximum requests that wait for a row. Further requests get a 429.", at_least=0
    )
    prefill_chunk_tokens: int = setting(2048, "Maximum prompt tokens prefilled per step.", at_least=1)
    default_max_tokens: int | None = setting(
        None,
        "Maximum tokens of an answer whose request sets no limit.",
        at_least=1,
        unset="max_new_tokens of the model's generation_config.json, else all the room left in the context",
    )
    max_images: int = setting(
        20,
        "Maximum images of a conversation that a model sees. Of more, the oldest are shown as a line of "
        "text, some at a time; a newest turn with more gets a 400. 0: a model that sees is loaded as one "
        "that reads text.",
        at_least=0,
    )
    unknown_fields: Literal["refuse", "ignore"] = setting(
        "ignore",
        "What to do with what of a request has no effect here or can only be shown as text: leave it out or "
        "show it, and name it in x-reprise-ignored; or refuse it with a 400. Fields that other servers have "
        "are never refused.",
    )
    memory_bytes: int | None = setting(
        None,
        "Memory budget for weights, keys and values, working memory and cached prefixes together.",
        at_least=1,
        unset="0.9 of what the GPU recommends, or without a GPU 0.75 of the machine's memory",
    )
    wire_weights: bool = setting(
        False,
        "On a Mac with macOS 15 or later, keep the weights resident in memory. Off by default, as wired "
        "memory has been reported to crash macOS (mlx-lm issues 883 and 1666, mlx issue 3186). Refused "
        "without Metal, where it would do nothing.",
    )
    prefix_cache_bytes: int | None = setting(
        None,
        "Maximum memory for cached prefixes, those of the draft model or head included; they are evicted if "
        "running requests need it. 0 turns the cache off.",
        at_least=0,
        unset="a quarter of the memory left after weights",
    )
    prefix_cache_dir: str | None = setting(
        AUTO,
        "Folder that also keeps cached prefixes, finished requests and acceptance rates, so that they "
        "survive a restart; none for no folder. auto is ~/.cache/reprise/prefixes for `reprise serve` on one "
        "machine with a prefix cache, else none.",
        holds="path",
    )
    prefix_cache_dir_bytes: int | None = setting(
        None,
        "Maximum size of --prefix-cache-dir. The least recently used prefixes are deleted first, sooner if "
        "they save few tokens for their size.",
        at_least=1,
        unset="a tenth of what is free on its disk, at most 20 GB",
    )
    read_ahead: Literal["auto", "off", "turn"] = setting(
        "auto",
        "Compute a conversation's next prompt once its answer has ended and nothing else is to be done, "
        "where the chat template shows the answer otherwise than the model wrote it. auto: not on a battery. "
        "turn: on a battery too, and while tools run also the turn without its thoughts, which many "
        "templates leave out once the user speaks.",
    )
    draft_type: Literal[
        "auto",
        "none",
        "ngram-simple",
        "ngram-mod",
        "suffix",
        "draft-model",
        "mtp",
        "eagle3",
        "dflash",
        "wedlm",
    ] = setting("auto", "Where drafts come from. A request can choose another type.")
    num_draft_tokens: int = setting(
        31,
        "Maximum tokens of one draft. Measured costs decide how many are used.",
        at_least=1,
        at_most=255,
    )
    draft_overhead: float = setting(
        0.02,
        "Maximum slowdown of a request against plain decoding, as a fraction, plus six plain steps.",
        at_least=0,
    )
    gate: Literal["auto", "on", "off"] | float = setting(
        "auto",
        "How --draft-type auto treats a prompt of whose 3-grams a fraction below 0.01 repeats: auto expects "
        "little of drafts until they are accepted, on drafts nothing from lookups, off treats it like any "
        "other prompt. A number such as 0.05 is auto with this fraction.",
        at_least=0,
    )
    exact: bool = setting(
        False,
        "Draft only with widths (tokens per row and step) whose logits equal those of plain decoding byte "
        "for byte. They are tested at startup.",
    )
    draft_model: str | None = setting(
        None,
        "Small model that drafts for the target model: a folder, or a name on the model hub. It may have "
        "another vocabulary. Or a head that was made for the model: MTP, EAGLE-3, DFlash, or a Gemma 4 "
        "assistant.",
        holds="path",
    )
    dflash_window: int | None = setting(
        None,
        "Positions at the end of a long text that a DFlash drafter keeps, besides 64 at its beginning: its "
        "time and memory then stop growing, and it may draft worse. With none it keeps all.",
        at_least=1,
    )
    draft_translation: Literal["auto", "context", "shared", "none"] = setting(
        "auto",
        "How drafts of a model with another vocabulary become tokens of the target model: context encodes "
        "their text after the last committed tokens, shared drafts only tokens that "
        "both vocabularies have, none keeps ids as they are. auto is none for equal vocabularies, else "
        "context.",
    )
    ngram_mod_size: int = setting(16, "Tokens that ngram-mod hashes to look up the next one.", at_least=1)
    ngram_table_entries: int = setting(
        4 * 2**20, "Entries in ngram-mod's table, 4 bytes each.", at_least=1024, at_most=2**31
    )
    ngram_table_file: str | None = setting(
        None,
        "File from which ngram-mod's table is restored at start, and to which it is saved on exit.",
        holds="path",
    )
    ngram_scope: Literal["process", "api-key"] = setting(
        "process",
        "Which requests share drafts: process for all of them, api-key for those with the same API key.",
    )
    wedlm_decoding: Literal["off", "streaming"] = setting(
        "off",
        "How a WeDLM model decodes requests that leave it out: with streaming it fills in several tokens at "
        "once, and answers may differ from those of plain decoding.",
    )
    wedlm_window_size: int = setting(
        16, "Tokens that windowed decoding looks ahead. A request may ask for fewer.", at_least=1
    )
    wedlm_entropy_threshold: float | None = setting(
        0.3,
        "Windowed decoding fills in all tokens of which the model is less uncertain than this, in nats, but "
        "at least one. With none it fills in one at a time.",
        at_least=0,
    )
    log_format: Literal["text", "json"] = setting("text", "Format of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "Least severe level that is logged. With debug the banner also says what only matters to who tunes "
        "the server: batch, sampling, tools, where costs of steps come from, exact widths.",
    )
    record: str | None = setting(
        None,
        "File to which every finished answer is appended with its request, as JSON lines for reprise bench. "
        "Only its owner may read it.",
        holds="path",
    )

    keeps_costs: bool = True
    """No setting: benchmarks and checks, which neither use nor change what servers learn, set it to False."""

    is_server: bool = False
    """No setting: `reprise serve` on one machine sets it to True, for prefix_cache_dir auto."""

    def __post_init__(self) -> None:
        for name, known in SETTINGS.items():
            object.__setattr__(self, name, known.check(getattr(self, name)))
        if self.kv_bits not in (None, 4, 8):
            raise SettingsError(f"kv_bits is {self.kv_bits}; it must be 4 or 8, or none")
        for key in sorted((self.chat_template_kwargs or {}).keys() & RESERVED_TEMPLATE_KEYS):
            raise SettingsError(
                f"chat_template_kwargs sets {key}, which the server sets itself; leave it out"
            )
        if not SPLIT.fullmatch(self.split):
            raise SettingsError(
                f"split is {self.split!r}; it must be pipeline, tensor or numbers such as 20,12"
            )
        if self.prefix_cache_dir not in (None, AUTO) and self.prefix_cache_bytes == 0:
            raise SettingsError(
                "prefix_cache_dir is set, so prefix_cache_bytes must be above 0: prefixes are read into it"
            )
        if self.wire_weights and self.may_unload:
            raise SettingsError(
                "wire_weights keeps the weights of one model for good: do not set models_dir, allow_load, "
                "idle_unload_s, embedding_model or rerank_model"
            )
        is_open_allowed = self.needs_key or self.insecure
        _check_access(self.api_key, self.allowed_host, self.cors_origin, is_open_allowed)
        if self.wedlm_decoding == "streaming" and self.exact:
            raise SettingsError("wedlm_decoding is streaming, whose answers are not exact: do not set exact")
        needed = {"eagle3": "an EAGLE-3 head", "dflash": "a DFlash drafter", "draft-model": "a draft model"}
        if self.draft_type in needed and self.draft_model is None:
            lacking = f"{self.draft_type}, which needs {needed[self.draft_type]}"
            raise SettingsError(f"draft_type is {lacking}: set draft_model")

    @property
    def prefix_folder(self) -> Path | None:
        """The folder that keeps prefixes over a restart; None for none."""
        if self.prefix_cache_dir != AUTO:
            return Path(self.prefix_cache_dir) if self.prefix_cache_dir else None
        return prefixes_folder() if self.is_server and self.prefix_cache_bytes != 0 else None

    @property
    def capacity(self) -> int:
        """The maximum number of a model's sequences, running and waiting."""
        return self.max_rows + self.max_queue

    @property
    def needs_key(self) -> bool:
        """Whether clients must send an API key."""
        return bool(self.api_key)


def _check_access(
    keys: Collection[str], hosts: Collection[str], origins: Collection[str], is_open_allowed: bool
) -> None:
    """Raise SettingsError for a key that no header can carry, or an invalid host name or origin.

    is_open_allowed: whether the origins may include "*", which means every site.
    """
    if not all(key.startswith("@") or KEY.fullmatch(key) for key in keys):
        raise SettingsError("api_key must be visible ASCII characters without spaces")
    for name in hosts:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"allowed_host is {name!r}; it must be a host name without scheme and port, "
                "such as llm.example.com"
            )
    for origin in origins:
        if origin == "*" and not is_open_allowed:
            raise SettingsError(
                "cors_origin is '*', which lets every web page use this server; name the sites instead, "
                "set api_key, or set insecure to allow it"
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"cors_origin is {origin!r}; it must be a site's scheme, host name and optional port, "
                "such as https://chat.example.com"
            )


def _declared() -> dict[str, Setting]:
    types = get_type_hints(Settings)
    return {
        f.name: make_setting(f.name, types[f.name], f.default, dict(f.metadata))
        for f in fields(Settings)
        if f.metadata
    }


SETTINGS: Mapping[str, Setting] = MappingProxyType(_declared())
"""Every setting by name, in the order of declaration."""

_FIRST_OF_GROUP = {
    "model": "Model",
    "models_dir": "Several models",
    "hosts": "Several machines",
    "host": "Address and access",
    "max_rows": "Scheduling",
    "default_max_tokens": "Request limits",
    "memory_bytes": "Memory and caches",
    "draft_type": "Drafting",
    "draft_model": "Draft model",
    "ngram_mod_size": "N-gram drafts",
    "wedlm_decoding": "Windowed decoding",
    "log_format": "Logs and recording",
}


def _grouped() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    title = ""
    for name in SETTINGS:
        title = _FIRST_OF_GROUP.get(name, title)
        groups.setdefault(title, []).append(name)
    return groups


GROUPS: Mapping[str, list[str]] = MappingProxyType(_grouped())
"""Names of the settings by the title of their group, for `reprise serve --help` and docs/settings.md."""
