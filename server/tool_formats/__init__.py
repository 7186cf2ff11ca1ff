"""Read the formats in which models write tool calls while they arrive, and make grammars for these formats.

mlx-lm's parsers read whole calls; these readers read the same formats bit by bit, and grammars enforce them.
"""
