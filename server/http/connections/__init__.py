"""Client connections: where they are accepted, how many, and in which order what they sent is read."""
