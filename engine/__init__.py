"""The one thread that owns MLX: admit, prefill, decode, verify drafts, sample, commit, emit.

Nothing here speaks HTTP or uses the event loop, and drafters are known by drafters/base.py alone.
README.md walks through it.
"""
