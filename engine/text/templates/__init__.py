"""Chat templates, and the conversations of clients that they were not written for.

chat_template.py renders, and keeps text of users from becoming special tokens. fit.py finds out what a
template takes, and changes a conversation by the least that it takes.
"""
