"""The prefix cache: KV slices and state of earlier prompts and answers, in memory and on disk.

trie.py is the tier in memory, disk.py the tier on disk. scheduler/request_queue.py decides what to look
up, scheduler/kept_prefixes.py what to store and when.
"""
