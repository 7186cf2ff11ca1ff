"""Validate request bodies: field types, JSON schemas, regular expressions and grammars, with their limits."""
