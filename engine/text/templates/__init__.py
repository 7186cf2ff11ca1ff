"""Chat templates, and conversations that they were not written for.

chat_template.py renders, and keeps users' text from becoming special tokens. fit.py probes what a template
accepts, and changes a conversation as little as needed.
"""
