"""Write quantities for people."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def format_bytes(number: float) -> str:
    """Write a number of bytes in the largest unit of which there is at least one."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 else f"{number:.1f} {_UNITS[unit]}"
