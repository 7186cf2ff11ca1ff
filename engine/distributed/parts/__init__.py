"""One rank's part of a model: how the model is split, the part's forward passes, and its prefix files."""
