"""The loaded model: weights, configuration, what probes have found, and the settings that come with it.

Nothing here knows about batches or runs a step.
"""
