"""Choose tokens from logits: seeded noise, penalties, filters, grammar masks and log probabilities.

Nothing here knows which drafter proposed a token or how it is sent.
"""
