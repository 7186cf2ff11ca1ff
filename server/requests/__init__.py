"""Bodies, messages and tools in the normal form, which those of every API are translated into."""
