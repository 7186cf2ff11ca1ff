"""Anthropic's Messages API: convert its requests to chat requests, and format its responses.

Generating is the same as for chat completions; see generation/.
"""
