"""`reprise bench all`: every published figure, and the command that makes it."""
