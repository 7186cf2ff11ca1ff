"""A small model that drafts for the target model: its rows, what it has read, how it samples, what it costs.

Nothing here verifies drafts; to the rest of the engine the draft model is one more source of them.
"""
