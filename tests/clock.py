"""A clock that only tests move."""


class Clock:
    """Stands in for a clock of the module time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
