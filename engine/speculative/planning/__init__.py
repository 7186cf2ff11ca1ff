"""Plan a step: whether it verifies drafts, how wide it is, what every row feeds. Then charge its time."""
