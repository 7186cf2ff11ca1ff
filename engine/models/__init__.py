"""Several models on one thread: what there is, what is loaded, and whose turn it is."""
