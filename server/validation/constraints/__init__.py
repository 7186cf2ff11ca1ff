"""Check the JSON schemas, regular expressions and grammars to which an answer is constrained."""
