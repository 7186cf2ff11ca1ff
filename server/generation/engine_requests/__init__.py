"""What is asked of the engine: choices and their seeds, limits of tokens, grammars, windows."""
