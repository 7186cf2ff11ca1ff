"""Coding agents' settings for a server, and how to write them into the agents' files."""
