"""Validate request bodies: field types, JSON schemas, regular expressions and grammars, with their limits.

Nothing here is specific to an endpoint: bodies are declared in requests/, responses_api/ and messages_api/.
"""
