"""Validate request bodies: field types, JSON schemas, regular expressions and grammars, with their limits.

Nothing here belongs to a single endpoint: bodies are declared in requests/ and in the two API packages.
"""
