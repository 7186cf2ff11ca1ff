"""Read the formats in which models write tool calls, and make grammars for them."""
