"""Translate drafts between two vocabularies, and the committed text into the draft model's ids.

Everything here is decided on the bytes of tokens, never on a tokenizer's decoded text.
"""
