"""The formats in which models write tool calls: how they are read while they arrive, and grammars for them.

mlx-lm's parsers read whole calls; what is here reads the same formats bit by bit, and enforces them.
"""
