"""The one way durations are written: 250ms, 2.5s, 1m30s, 5m."""

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# Units in falling order, each at most once.
_SHAPE = re.compile("".join(rf"(?:([0-9]+(?:\.[0-9]+)?){unit})?" for unit in _UNITS))


# Ten years: whoever writes more has mistaken the unit. Every wait of the system takes it.
LONGEST_SECONDS = 3650 * 86400.0


def parse_duration(text: str) -> float:
    """Seconds, from zero to LONGEST_SECONDS. Raises ValueError with one line that shows how to write it."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None or not any(match.groups()) or len(text) > 40:
        raise ValueError(f"invalid duration {text[:40]!r}; use 250ms or 1m30s")
    # Milliseconds are divided, so that 300ms is the same float as 0.3.
    *whole, milliseconds = match.groups(default="0")
    seconds = sum(float(number) * unit for number, unit in zip(whole, _UNITS.values(), strict=False))
    seconds += float(milliseconds) / 1000
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"invalid duration {text!r}; use at most 3650d, and check its unit")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest writing that parse_duration reads back, to a thousandth of a second: 0.25 -> 250ms, 90 -> 1m30s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" * bool(hours) + f"{minutes}m" * bool(minutes)
    return text + f"{rest / 1000:g}s" * bool(rest)
