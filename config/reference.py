"""Generate docs/settings.md from the list of settings: `python -m reprise.config.reference [FOLDER]`."""

import sys
from pathlib import Path

from reprise.config.setting import Setting
from reprise.config.settings import GROUPS, SETTINGS
from reprise.config.sources import CONFIG_VARIABLE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

_INTRODUCTION = f"""\
# Settings

Generated from the code by `python -m reprise.config.reference`. Do not edit.

Reprise takes settings from four places. A later one overrides an earlier one:

1. the defaults,
2. a TOML file, named by `--config FILE` or by the variable `{CONFIG_VARIABLE}`,
3. environment variables,
4. flags of `reprise serve`.

In a TOML file, a setting has the name of its flag, with underscores and without the leading dashes:

```toml
max_rows = 4
draft_type = "suffix"
served_model_name = ["gpt-4o", "local"]
max_context_tokens = "none"
chat_template_kwargs = {{ preserve_thinking = true }}
```

- An unknown setting, variable or flag is an error that suggests the closest known one.
- A setting that takes several values is a list in TOML, a repeated flag, or one variable with commas.
- A flag that takes `true` or `false` means `true` on its own.
- The value `none` unsets an optional setting.
- A section such as `[models."qwen3-8b"]` of the file sets what differs for one of
  [several models](serving.md#several-models). It overrides all other places.
- `reprise config` prints the settings in force and where each came from. Its output is a valid settings file.
"""


def write_settings() -> str:
    """Return the text of docs/settings.md: one table of settings per group."""
    return "\n".join([_INTRODUCTION, *map(_section, GROUPS)])


def _section(title: str) -> str:
    rows = [("Flag", "Environment variable", "Default", "Meaning"), ("---",) * 4]
    rows += [_row(SETTINGS[name]) for name in GROUPS[title]]
    return "".join([f"## {title}\n\n", *(f"| {' | '.join(row)} |\n" for row in rows)])


def _row(known: Setting) -> tuple[str, str, str, str]:
    meaning = " ".join(filter(None, [known.help, _limits(known)])).replace("|", r"\|")
    return f"`{known.flag}`", f"`{known.variable}`", _default(known), meaning


def _default(known: Setting) -> str:
    is_prose = known.default in (None, ())
    return known.default_text if is_prose else f"`{known.default_text}`"


def _limits(known: Setting) -> str:
    if known.choices:
        more = ", or a number" if known.kind == "number" else ""
        return f"One of {', '.join(f'`{choice}`' for choice in known.choices)}{more}."
    if known.at_most is not None:
        return f"From {known.at_least} to {known.at_most}."
    # A lower limit of 0 or 1 is obvious for a count.
    return f"At least {known.at_least}." if known.at_least not in (None, 0, 1) else ""


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else PAGE.parent
    (folder / PAGE.name).write_text(write_settings(), encoding="utf-8")
