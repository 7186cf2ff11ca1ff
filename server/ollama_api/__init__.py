"""Ollama's API: translate its requests to chats and completions, and format its answers."""
