"""OpenAI's Responses API: convert its requests to chat requests, format its responses and store them.

Generating is the same as for chat completions; see generation/.
"""
