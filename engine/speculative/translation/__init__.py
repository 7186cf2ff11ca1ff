"""Translate drafts between two vocabularies, and the committed text into the draft model's ids.

All decisions here rest on the bytes of tokens, never on a tokenizer's decoded text.
"""
