"""The facts about a server that coding agents need, and how they get into their configuration files."""
