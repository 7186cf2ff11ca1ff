"""Parse what the model wrote: its parts, which tokens they are of, and whether it is what was asked for."""
