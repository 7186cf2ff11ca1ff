"""The commands that talk to a server that runs."""
