"""The engine of a model that generates text: its worker, the step, and what a failing step leads to."""
