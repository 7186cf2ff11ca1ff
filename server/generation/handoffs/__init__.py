"""Work that the event loop hands to other threads, and what the engine's thread hands to it."""
