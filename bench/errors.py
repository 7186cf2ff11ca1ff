"""The errors that end a benchmark."""


class BenchError(Exception):
    """The benchmark has to stop; the message is one line with the reason and the way out."""


class ArgumentsError(BenchError):
    """A command's arguments are invalid, or cannot be combined."""
