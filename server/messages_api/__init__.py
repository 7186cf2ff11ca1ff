"""Anthropic's Messages API: its bodies, what they mean as a chat, and answers in its shapes."""
