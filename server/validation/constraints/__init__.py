"""What an answer may be constrained to: JSON schemas, regular expressions and grammars, and their limits."""
