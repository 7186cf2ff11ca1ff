"""Plan a step: whether it verifies drafts, how wide it is, what every row feeds, and what it then took."""
