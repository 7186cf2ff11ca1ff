"""The known agents, and the settings that each documents for custom servers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reprise.config.model_settings import BUNDLED_NAME

KEY_VARIABLE = "LOCAL_REPRISE_API_KEY"
"""Not REPRISE_API_KEY, which is the server's: set for an agent, it would make the server ask for a key."""
_PROVIDER = "local_reprise"
"""Zed makes KEY_VARIABLE of it."""
_HOUR_MS = "3600000"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model, as agents need to know it.

    url: the server's address, without /v1. key: what a client sends as its API key; None if it needs none.
    context_tokens: limit of a prompt and its answer together. can_call: whether the model can call tools.
    """

    url: str
    name: str
    context_tokens: int
    can_call: bool
    key: str | None = None

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def sent_key(self) -> str:
        """The key, or a placeholder for clients that do not start without one."""
        return self.key or "none"

    @property
    def answer_tokens(self) -> int:
        """A quarter of the context, for agents that also need an answer limit."""
        return self.context_tokens // 4


@dataclass(frozen=True, slots=True)
class AgentFile:
    """Settings for one configuration file.

    path: relative to the home directory. settings: None for a key to remove, in TOML only.
    new_file: further settings that a new file needs.
    """

    path: str
    format: Literal["json", "toml", "yaml"]
    settings: Mapping[str, Any]
    new_file: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All settings of one agent. notes: lines for the user about manual steps."""

    files: tuple[AgentFile, ...] = ()
    notes: tuple[str, ...] = ()


def _codex(model: ServedModel) -> AgentSettings:
    provider = {
        "name": "Reprise",
        "base_url": model.openai_url,
        "wire_api": "responses",
        # Codex sends nothing while it names a variable that is not set.
        "env_key": KEY_VARIABLE if model.key else None,
    }
    settings = {
        "model": model.name,
        "model_provider": _PROVIDER,
        "model_context_window": model.context_tokens,
        "model_providers": {_PROVIDER: provider},
    }
    notes = (_export(model),) if model.key else ()
    return AgentSettings((AgentFile(".codex/config.toml", "toml", settings),), notes)


def _claude(model: ServedModel) -> AgentSettings:
    names = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    variables = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_AUTH_TOKEN": model.sent_key,
        **{f"ANTHROPIC_{name}": model.name for name in names},
        # The first raises the 200,000 tokens that it assumes, but not for names that begin with claude-; the
        # second lowers them for any name.
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(model.context_tokens),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(model.context_tokens),
        # It keeps room for an answer, and condenses the chat when less is left: by default, a context
        # of 65,536 tokens is full after the first turn.
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(model.context_tokens // 8),
        # It ends a request that has no answer after ten minutes, and a stream that has none after five: the
        # first prompt takes longer on a slow machine.
        "API_TIMEOUT_MS": _HOUR_MS,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": _HOUR_MS,
    }
    return AgentSettings((AgentFile(".claude/settings.json", "json", {"env": variables}),))


def _opencode(model: ServedModel) -> AgentSettings:
    limit = {"context": model.context_tokens, "output": model.answer_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Reprise",
        "options": {"baseURL": model.openai_url, "apiKey": model.sent_key},
        "models": {model.name: {"name": model.name, "limit": limit}},
    }
    settings = {"model": f"{_PROVIDER}/{model.name}", "provider": {_PROVIDER: provider}}
    schema = {"$schema": "https://opencode.ai/config.json"}
    return AgentSettings((AgentFile(".config/opencode/opencode.json", "json", settings, schema),))


def _aider(model: ServedModel) -> AgentSettings:
    name = f"openai/{model.name}"
    settings = {"model": name, "openai-api-base": model.openai_url, "openai-api-key": model.sent_key}
    limits = {
        "max_tokens": model.answer_tokens,
        "max_input_tokens": model.context_tokens,
        "max_output_tokens": model.answer_tokens,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    return AgentSettings(
        (
            AgentFile(".aider.conf.yml", "yaml", settings),
            AgentFile(".aider.model.metadata.json", "json", {name: limits}),
        )
    )


def _continue(model: ServedModel) -> AgentSettings:
    entry = {
        "name": "Reprise",
        "provider": "openai",
        "model": model.name,
        "apiBase": model.openai_url,
        "apiKey": model.sent_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"] if model.can_call else [],
        "defaultCompletionOptions": {
            "contextLength": model.context_tokens,
            "maxTokens": model.answer_tokens,
        },
    }
    new_file = {"name": "Local", "version": "1.0.0", "schema": "v1"}
    return AgentSettings((AgentFile(".continue/config.yaml", "yaml", {"models": [entry]}, new_file),))


def _cline(model: ServedModel) -> AgentSettings:
    return AgentSettings(
        notes=(
            "Cline documents no format of its files. In a terminal, run",
            f"  cline auth -p openai -k {model.sent_key} -b {model.openai_url} -m {model.name}",
            'In an editor, choose the provider "OpenAI Compatible" in its settings, with that address as',
            f"base URL, that key and model, and a context window of {model.context_tokens} tokens.",
        )
    )


def _zed(model: ServedModel) -> AgentSettings:
    entry = {
        "name": model.name,
        "display_name": model.name,
        "max_tokens": model.context_tokens,
        "max_output_tokens": model.answer_tokens,
        "capabilities": {
            "tools": model.can_call,
            "images": False,
            "parallel_tool_calls": False,
            "prompt_cache_key": False,
        },
    }
    provider = {"api_url": model.openai_url, "available_models": [entry]}
    settings = {
        "language_models": {"openai_compatible": {_PROVIDER: provider}},
        "agent": {"default_model": {"provider": _PROVIDER, "model": model.name}},
    }
    return AgentSettings((AgentFile(".config/zed/settings.json", "json", settings),), (_export(model),))


def _completions_provider(model: ServedModel, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the provider as pi and OpenClaw have it. entry: describes the model."""
    return {
        "baseUrl": model.openai_url,
        "api": "openai-completions",
        "apiKey": model.sent_key,
        "models": [entry],
    }


def _pi(model: ServedModel) -> AgentSettings:
    entry = {
        "id": model.name,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": model.context_tokens,
        "maxTokens": model.answer_tokens,
    }
    provider = _completions_provider(model, entry)
    chosen = {"defaultProvider": _PROVIDER, "defaultModel": model.name}
    return AgentSettings(
        (
            AgentFile(".pi/agent/models.json", "json", {"providers": {_PROVIDER: provider}}),
            AgentFile(".pi/agent/settings.json", "json", chosen),
        )
    )


def _crush(model: ServedModel) -> AgentSettings:
    entry = {
        "id": model.name,
        "name": model.name,
        "context_window": model.context_tokens,
        "default_max_tokens": model.answer_tokens,
    }
    provider = {
        "name": "Reprise",
        "type": "openai-compat",
        "base_url": model.openai_url,
        "api_key": model.sent_key,
        "models": [entry],
    }
    chosen = {"provider": _PROVIDER, "model": model.name}
    settings = {"providers": {_PROVIDER: provider}, "models": {"large": chosen, "small": chosen}}
    schema = {"$schema": "https://charm.land/crush.json"}
    return AgentSettings((AgentFile(".config/crush/crush.json", "json", settings, schema),))


def _goose(model: ServedModel) -> AgentSettings:
    provider = {
        "name": _PROVIDER,
        "engine": "openai",
        "display_name": "Reprise",
        "description": "Reprise on this machine",
        "api_key_env": KEY_VARIABLE,
        "base_url": f"{model.openai_url}/chat/completions",
        "models": [{"name": model.name, "context_limit": model.context_tokens}],
        "supports_streaming": True,
    }
    chosen = {"GOOSE_PROVIDER": _PROVIDER, "GOOSE_MODEL": model.name}
    return AgentSettings(
        (
            AgentFile(f".config/goose/custom_providers/{_PROVIDER}.json", "json", provider),
            AgentFile(".config/goose/config.yaml", "yaml", chosen),
        ),
        (_export(model),),
    )


def _vscode(model: ServedModel) -> AgentSettings:
    entry = {
        "id": model.name,
        "name": model.name,
        "url": f"{model.openai_url}/chat/completions",
        "toolCalling": model.can_call,
        "vision": False,
        "maxInputTokens": model.context_tokens - model.answer_tokens,
        "maxOutputTokens": model.answer_tokens,
    }
    return AgentSettings(
        notes=(
            'In VS Code run "Chat: Manage Language Models", add a "Custom Endpoint" with the API type "Chat',
            f'Completions" and the key {model.sent_key}, which VS Code keeps itself. In the file that opens,',
            f"chatLanguageModels.json, give it this model (its context is {model.context_tokens} tokens):",
            *(f"  {line}" for line in json.dumps({"models": [entry]}, indent=2).splitlines()),
        )
    )


def _copilot(model: ServedModel) -> AgentSettings:
    limits = model.context_tokens - model.answer_tokens, model.answer_tokens
    return AgentSettings(
        notes=(
            "GitHub Copilot CLI takes the server from the environment (`copilot help providers`):",
            f"  export COPILOT_PROVIDER_BASE_URL={model.openai_url}",
            f"  export COPILOT_PROVIDER_API_KEY={model.sent_key}",
            f"  export COPILOT_MODEL={model.name}",
            f"  export COPILOT_PROVIDER_MAX_PROMPT_TOKENS={limits[0]}",
            f"  export COPILOT_PROVIDER_MAX_OUTPUT_TOKENS={limits[1]}",
            f"Both limits together are the context of {model.context_tokens} tokens.",
        )
    )


def _openclaw(model: ServedModel) -> AgentSettings:
    entry = {
        "id": model.name,
        "name": model.name,
        "input": ["text"],
        "contextWindow": model.context_tokens,
        "maxTokens": model.answer_tokens,
    }
    provider = _completions_provider(model, entry)
    settings = {
        "models": {"providers": {_PROVIDER: provider}},
        "agents": {"defaults": {"model": {"primary": f"{_PROVIDER}/{model.name}"}}},
    }
    return AgentSettings((AgentFile(".openclaw/openclaw.json", "json", settings),))


def _kimi(model: ServedModel) -> AgentSettings:
    provider = {"type": "openai", "base_url": model.openai_url, "api_key": model.sent_key}
    entry = {
        "provider": _PROVIDER,
        "model": model.name,
        "max_context_size": model.context_tokens,
        "capabilities": ["tool_use"] if model.can_call else [],
    }
    settings = {
        "default_model": _PROVIDER,
        "providers": {_PROVIDER: provider},
        "models": {_PROVIDER: entry},
    }
    return AgentSettings((AgentFile(".kimi-code/config.toml", "toml", settings),))


def _droid(model: ServedModel) -> AgentSettings:
    entry = {
        "displayName": "Reprise",
        "model": model.name,
        "baseUrl": model.openai_url,
        "apiKey": model.sent_key,
        "provider": "generic-chat-completion-api",
        "maxOutputTokens": model.answer_tokens,
    }
    return AgentSettings(
        (AgentFile(".factory/settings.json", "json", {"customModels": [entry]}),),
        (f"Choose Reprise with /model. Droid cannot be told the context ({model.context_tokens} tokens).",),
    )


def _export(model: ServedModel) -> str:
    return f"The key comes from the environment: export {KEY_VARIABLE}={model.sent_key}"


AGENTS: Mapping[str, Callable[[ServedModel], AgentSettings]] = {
    "codex": _codex,
    "claude": _claude,
    "opencode": _opencode,
    "aider": _aider,
    "continue": _continue,
    "cline": _cline,
    "zed": _zed,
    "pi": _pi,
    "crush": _crush,
    "goose": _goose,
    "vscode": _vscode,
    "copilot": _copilot,
    "openclaw": _openclaw,
    "kimi": _kimi,
    "droid": _droid,
}

FIRST_PROMPT_TOKENS: Mapping[str, int] = {
    "claude": 36_272,
    "codex": 16_841,
    "opencode": 13_756,
    "cline": 9_093,
    "continue": 3_058,
    "aider": 1_652,
}
"""Tokens of an agent's prompt before the person's first word, in the bundled model's vocabulary of 4,096
tokens. Measured: docs/agents.md."""

TYPICAL_SHARE = 0.6
"""Tokens of the same prompts in a vocabulary of 49,152, relative to the bundled model's."""

SESSION_TOKENS: Mapping[str, int] = {"claude": 12_000, "codex": 8_900, "opencode": 7_500}
"""Tokens of the first prompt in people's own sessions, in vocabularies of today's models (2026-11-30)."""

MIN_MEASURED_TOKENS = 512
"""Tokens of a prompt that show how fast prompts are computed; of fewer, other work takes most of the time."""

WANTED_TOKENS = 65_536
"""The context that agents want at least: for the first prompt, files that they read, and their answers."""


def estimate_first_prompt(agent: str, model: ServedModel) -> float:
    """Estimate the tokens of an agent's first prompt, to the next hundred; 0 if they are unknown."""
    measured = FIRST_PROMPT_TOKENS.get(agent, 0)
    if model.name == BUNDLED_NAME:
        return round(measured, -2)
    return SESSION_TOKENS.get(agent) or round(TYPICAL_SHARE * measured, -2)


def explain_wait(agent: str, model: ServedModel, requests: Sequence[Mapping[str, Any]]) -> str | None:
    """Explain how long an agent's first prompt will take; None if prompt or speed are unknown.

    requests: the server's last requests, as GET /v1/requests lists them. The fastest long prompt counts, as
    others may have waited.
    """
    speed = 0.0
    for one in requests:
        if one.get("first_token_ms") and one.get("model", model.name) == model.name:
            num_computed = one["num_prompt_tokens"] - (one["num_cached_tokens"] or 0)
            if num_computed >= MIN_MEASURED_TOKENS:
                speed = max(speed, 1000 * num_computed / one["first_token_ms"])
    num_tokens = estimate_first_prompt(agent, model)
    if not speed or not num_tokens:
        return None
    return (
        f"the first prompt of {agent} has about {num_tokens:,.0f} tokens: {num_tokens / speed:.0f} s here, "
        f"at the {speed:,.0f} tokens/s of an earlier prompt. Later sessions find it cached, also after a "
        "restart (unless the server runs with --prefix-cache-dir none)"
    )


def explain_context(agent: str, model: ServedModel) -> str | None:
    """Explain that an agent's first prompt exceeds a context; None if it fits or is unknown."""
    needed = estimate_first_prompt(agent, model)
    if needed < model.context_tokens:
        return None
    return (
        f"{model.name} takes {model.context_tokens:,} tokens, prompt and answer together, and the first "
        f"prompt of {agent} alone has about {needed:,.0f}: the server will refuse it. Agents want "
        f"{WANTED_TOKENS:,} or more; `reprise doctor` proposes a model"
    )
