"""Anthropic's Messages API: translate its requests to chats, and format its answers."""
