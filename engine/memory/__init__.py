"""Memory: the demands of sequences, upper estimates of their bytes, and the budget that decides by these."""
