"""The model as it is loaded: weights, tokenizer, vocabulary, chat template, markers, and tokens back to text.

Nothing here keeps the state of a request in the batch or runs a step.
"""
