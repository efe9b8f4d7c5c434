"""Text to values: sizes, durations, numbers and switches. Pure.

A size is a number of bytes or has a unit, "512MiB"; a duration is a number in the setting's own
unit or has one, "10s", "250ms", "7d".
"""

import re
from typing import Final

SIZE_UNITS: Final = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
DURATION_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SWITCHES: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9][0-9_]*)\s*([a-zA-Z]*)")


def parse_labels(text: str) -> dict[str, str]:
    """NAME=VALUE, several separated by commas, sorted by name. Raises: ValueError."""
    labels: dict[str, str] = {}
    for pair in text.split(",") if text.strip() else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value) or name in labels:
            raise ValueError(text)
        labels[name] = value
    return dict(sorted(labels.items()))


def parse_switch(text: str) -> bool:
    """True or false. Raises: ValueError."""
    value = _SWITCHES.get(text.strip().lower())
    if value is None:
        raise ValueError(text)
    return value


def parse_integer(text: str) -> int:
    """A whole number, which may have underscores. Raises: ValueError."""
    return int(text.strip())


def parse_size(text: str) -> int:
    """Bytes. Raises: ValueError."""
    number, unit = _split(text)
    return number * _unit(SIZE_UNITS, unit or "b")


def parse_duration(text: str, *, unit_ms: int) -> int:
    """A duration in units of `unit_ms` milliseconds.

    Raises:
        ValueError: not a duration, or not a whole number of that unit.
    """
    number, unit = _split(text)
    if not unit:
        return number
    whole, rest = divmod(number * _unit(DURATION_UNITS_MS, unit), unit_ms)
    if rest:
        raise ValueError(text)
    return whole


def format_size(size_bytes: int) -> str:
    """A size in the largest unit that gives a whole number: "64MiB"."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def format_duration(duration_ms: int) -> str:
    """A duration in the largest unit that gives a whole number: "10s"."""
    for unit in ("d", "h", "min", "s"):
        factor = DURATION_UNITS_MS[unit]
        if duration_ms and duration_ms % factor == 0:
            return f"{duration_ms // factor}{unit}"
    return f"{duration_ms}ms"


def _split(text: str) -> tuple[int, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(match[1]), match[2].lower()


def _unit(units: dict[str, int], unit: str) -> int:
    factor = units.get(unit)
    if factor is None:
        raise ValueError(unit)
    return factor
