"""Decide what the next step does: which requests run, how much of prompts is fed, what a draft model reads.

Nothing here runs a decoding step; batch.py and speculative/verify.py do.
"""
