"""What stops a benchmark."""


class BenchError(Exception):
    """The benchmark cannot go on; the message is one line that says why, and the way out."""


class ArgumentsError(BenchError):
    """The arguments do not go together."""
