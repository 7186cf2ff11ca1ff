"""Heads: small models that draft from the target's hidden states, with its embedding and output head."""
