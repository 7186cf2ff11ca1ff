"""Ollama's API: convert its requests to chat requests and completions, and format its responses.

Generating is the same as for OpenAI's endpoints; see generation/.
"""
