"""Choose the next step's work: which requests run, their prefill chunks, and draft prefill.

Nothing here runs a decoding step; batch.py and speculative/verify.py do.
"""
