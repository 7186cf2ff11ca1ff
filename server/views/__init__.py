"""Make views of a conversation's texts for drafters to copy from.

A view is a text in the form that it would have in an answer, such as escaped as JSON in a tool call.
"""
