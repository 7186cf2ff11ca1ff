"""Turn the engine's text into answers: parse reasoning and tool calls, count usage."""
