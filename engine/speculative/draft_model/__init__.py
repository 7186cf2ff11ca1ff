"""The draft model: its rows, its prefill, its sampling, its costs, and the length of its drafts.

Nothing here verifies drafts; for the rest of the engine the draft model is one more source of drafts.
"""
