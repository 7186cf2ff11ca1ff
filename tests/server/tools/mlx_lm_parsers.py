"""Tool calls as mlx-lm's own parsers read them, to compare with."""

import importlib
import json


def parsed_by_mlx_lm(name, text, tools):
    """Return (name, arguments) of all calls in a text between markers; empty if it cannot be parsed."""
    parse = importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call
    try:
        found = parse(text, tools)
        return [_fields(call) for call in (found if isinstance(found, list) else [found])]
    # Parsers evaluate what the model wrote, and fail in many ways.
    except Exception:  # noqa: BLE001
        return []


def _fields(call):
    arguments = call.get("arguments", {})
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert isinstance(call["name"], str)
    assert isinstance(arguments, dict)
    return call["name"], json.loads(json.dumps(arguments))
