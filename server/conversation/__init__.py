"""The normal form of a conversation: all APIs are translated into it, and templates are rendered from it.

History is never refused: parts.py says what of it is left out, and what is shown as text.
"""
