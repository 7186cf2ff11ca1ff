"""Speculative decoding: drafts, the gate that limits them, their verification, and the costs of steps.

Nothing here admits requests or keeps caches, and nothing here may change a token of an answer.
"""
