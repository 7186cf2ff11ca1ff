"""Several models on one thread: what there is, what is loaded, and which runs next."""
