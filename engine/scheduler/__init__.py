"""What the next step does: which requests run, how much of their prompts is fed, whether drafts are verified.

Nothing here runs a decoding step; batch.py and speculative/verify.py do.
"""
