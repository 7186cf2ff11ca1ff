"""Convert the model's text into responses: parse reasoning and tool calls, format objects, count usage.

Nothing here waits for the engine; generation/ supplies the text.
"""
