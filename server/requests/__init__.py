"""Bodies, messages and tools in the normal form, which those of every API are translated into.

History is never refused: messages.py says what of it is left out, and what is shown as text. Nothing here
talks to the engine or builds a response.
"""
