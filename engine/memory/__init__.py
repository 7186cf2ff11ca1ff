"""Memory: upper estimates of the bytes that sequences need, and the budget that admits them."""
