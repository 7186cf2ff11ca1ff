"""Choose the next step's work: which requests run, how much of their prompts is fed, which draft prefill.

Nothing here runs a decoding step; batch.py and speculative/verify.py do.
"""
