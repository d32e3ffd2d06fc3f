"""Numbers as people read them, in sentences as in tables: 38 ms, 2.4 s, 24,576, 97 %. None is "unknown"."""

import math

UNKNOWN = "unknown"


def figures(value: float) -> str:
    """Three figures, and no more than two places after the point."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{min(decimals, 2)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds(value: float | None) -> str:
    """In the unit that reads best."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0 s"
    size = abs(value)
    if size < 0.9995:
        return f"{figures(value * 1000)} ms" if size >= 0.000005 else "under 0.01 ms"
    if size < 599.5:
        return f"{figures(value)} s"
    return f"{value / 60:.0f} min" if size < 2 * 3600 else f"{value / 3600:.1f} h"


def percent(ratio: float | None) -> str:
    """Whole percent, below ten with one place: what is not nothing never reads as 0 %."""
    if ratio is None:
        return UNKNOWN
    if 0 < ratio < 0.0005:
        return "under 0.1 %"
    return f"{100 * ratio:.{1 if 0 < ratio < 0.0995 else 0}f}".removesuffix(".0") + " %"


def number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else figures(value)
