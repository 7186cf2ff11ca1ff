"""Drafts between two vocabularies: what the draft model reads, and which target tokens its drafts become.

Everything here is decided on the bytes of tokens, never on a tokenizer's decoded text.
"""
