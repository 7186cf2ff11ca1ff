"""The command line: reads arguments, composes settings, engine, drafters and server, prints for people."""
