"""The n-gram table that all requests share, and the drafter that reads it."""
