"""Choosing tokens from logits: seeded noise, penalties, filters, grammar masks and log probabilities.

Nothing here knows where a token was drafted or how it is sent.
"""
