"""Explain a name that is no setting: what to do if it was one once, or else the closest known name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_FIXED = (
    *("load_timeout_s", "join_timeout_s", "keep_alive_s", "stall_seconds", "body_timeout_s"),
    *("max_n", "max_image_tokens", "max_body_bytes", "response_store_bytes", "record_bytes"),
    *("translation_prefix_tokens", "dflash_sink", "keep_billing_line", "drain_s"),
)

REMOVED: Mapping[str, str] = dict.fromkeys(_FIXED, "leave it out, its default is fixed") | {
    "api_key_file": "set api_key to @FILE",
    "costs_file": "leave it out; the file is in XDG_CACHE_HOME, by default ~/.cache",
    "gate_threshold": "set gate to the number",
    "log_prompts": "set record to a file, which gets every request with its answer",
    "loop_guard_tokens": "send it in requests, or write it into the model's generation_config.json",
    "mask_token_id": "write it into the model's config.json",
    "max_stall_ms": "lower prefill_chunk_tokens to shorten the pauses that prompts make",
    "split_layers": "set split to the numbers",
    "verbose": "set log_level to debug",
    "wedlm_anchor": "send it in requests",
    "wedlm_pos_penalty_factor": "send it in requests",
}
"""What to do instead of setting what is no setting any more."""


def explain_unknown(
    what: str, given: str, known: Iterable[str], prefix: str = "", otherwise: str = ""
) -> str:
    """Return the error for a name that is no setting, flag or variable.

    what: how the message calls it. known, prefix: see suggestion(). otherwise: ends the message if nothing is
    known about the name.
    """
    name = given.removeprefix(prefix).lower().replace("-", "_")
    if name in REMOVED:
        return f"{what} is gone: {REMOVED[name]}"
    return f"unknown {what}{suggestion(given, known, prefix) or otherwise}"


def suggestion(unknown: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean X?" for the closest known name, or "" if none is close.

    prefix: the names' common start. It is not compared, as it would make any two names look alike.
    """
    bare = {name.removeprefix(prefix): name for name in known}
    closest = get_close_matches(unknown.removeprefix(prefix), list(bare), n=1)
    return f"; did you mean {bare[closest[0]]}?" if closest else ""
