"""Anthropic's Messages API: its request bodies become chats, and responses are presented in its own format.

Nothing here generates; the chat does.
"""
