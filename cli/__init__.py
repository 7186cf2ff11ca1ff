"""The command line: parse arguments, connect settings, drafters, engine and server, and print results."""
