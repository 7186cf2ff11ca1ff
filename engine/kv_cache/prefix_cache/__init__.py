"""The prefix cache: what was computed of earlier prompts and answers, in memory (trie.py) and on disk."""
