"""The engine of a model that generates text: its worker, the step, and recovery from a failed step."""
