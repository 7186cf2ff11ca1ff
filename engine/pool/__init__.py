"""Several models on one thread: which exist, which are loaded, and which runs next."""
