"""The errors that end a benchmark."""

from pydantic import ValidationError


class BenchError(Exception):
    """The benchmark has to stop; the message is one line with the reason and the way out."""


class ArgumentsError(BenchError):
    """These arguments cannot be combined."""


def reason(fault: ValidationError) -> str:
    """Return where in the input the deepest errors are, and what they are."""
    errors = fault.errors(include_url=False, include_input=False)
    deepest = max(len(error["loc"]) for error in errors)
    found = [error for error in errors if len(error["loc"]) == deepest]
    # Other parts of a location are names of alternative types.
    place = "".join(f"[{part}]" for part in found[0]["loc"][1:] if isinstance(part, int))
    name = f"{found[0]['loc'][0]}{place}: " if deepest else ""
    return name + " or ".join(dict.fromkeys(error["msg"].removeprefix("Value error, ") for error in found))
