"""The loaded model: weights, configuration, probe results, and the settings that come with it.

Nothing here knows about batches or runs a step.
"""
