"""Below the tokenizer: the bytes of tokens, the table of them, and encoding on several threads."""
