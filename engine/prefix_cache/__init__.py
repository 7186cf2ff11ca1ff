"""The prefix cache: KV slices and state of earlier prompts and answers, in memory and on disk.

trie.py is the tier in memory, disk.py the tier on disk. Neither decides what to look up or when to store
something; scheduler/prefix_lookup.py does.
"""
