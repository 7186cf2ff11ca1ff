"""The part of a model that one rank has: how the model is split, its passes, and its files of prefixes."""
