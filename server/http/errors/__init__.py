"""Errors as responses, in the format of each API."""
