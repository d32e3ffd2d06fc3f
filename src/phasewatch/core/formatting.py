"""Numbers as people read them: 38 ms, 2.4 s, 12.5 requests/s, 97 %."""


def seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    if value < 0.001:
        return "0 ms" if value == 0 else "under 1 ms"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio * 100:.3g} %"


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
