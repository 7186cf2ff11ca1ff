"""From the text that the engine supplies to answers: reasoning and tool calls parsed, usage counted."""
