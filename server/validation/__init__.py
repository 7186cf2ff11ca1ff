"""Validating request bodies: field types, JSON schemas, regular expressions and grammars, with their limits.

Nothing here belongs to a single endpoint; the bodies of the endpoints are in requests/ and the two API packages.
"""
