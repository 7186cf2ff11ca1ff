"""Fields of bodies with their limits; bodies, messages and tools in the normal form of every API."""
