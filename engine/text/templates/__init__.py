"""Chat templates, and the conversations of clients that they were not written for.

chat_template.py renders; traits.py finds out what a template takes; fit.py changes a conversation by the
least that it takes; control_tokens.py keeps text of users from becoming special tokens.
"""
