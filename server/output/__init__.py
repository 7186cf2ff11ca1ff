"""From the model's text to responses: parse reasoning and tool calls, format OpenAI's objects, count usage.

Nothing here waits for the engine; generation/ feeds it.
"""
