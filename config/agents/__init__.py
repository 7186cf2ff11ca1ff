"""What coding agents need to know of a server, and how that gets into their configuration files."""
