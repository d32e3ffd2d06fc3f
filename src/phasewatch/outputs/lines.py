"""Numbers, names and lines for human eyes. The blocks of `diagnose` are in show_fleet.

Rich drops colours on its own where NO_COLOR is set or the output is no terminal.
"""

import math
from collections.abc import Iterable
from datetime import datetime

from rich.table import Table
from rich.text import Text

from phasewatch.core.model import EngineReport, Estimate

UNKNOWN = "-"
# Times above this are Unix time (2001 and later), below it a recording's own seconds.
_UNIX = 1e9
# Every other state wants a look first.
_STATE_STYLE = {"serving": "green", "idle": "dim", "asleep": "dim", "warming_up": "cyan", "stale": "yellow"}


def seconds(value: float | None) -> str:
    """Three figures and the unit that reads best; "-" where unknown."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0 s"
    size = abs(value)
    if size < 0.9995:
        return f"{figures(value * 1000)} ms"
    if size < 599.5:
        return f"{figures(value)} s"
    return f"{value / 60:.0f} min" if size < 2 * 3600 else f"{value / 3600:.1f} h"


def figures(value: float) -> str:
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{min(decimals, 2)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.{1 if 0 < value < 0.1 else 0}f} %"


def number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else figures(value)


def when(at: float | None) -> str:
    """Wall clock of this machine for Unix times, the recording's own seconds otherwise."""
    if at is None:
        return UNKNOWN
    if at > _UNIX:
        return datetime.fromtimestamp(at).strftime("%H:%M:%S")
    return f"second {at:.0f}"


def estimate(value: Estimate | None, *, bounds: bool = True) -> str:
    """`1.8 s (1-2.5)`: the true value lies within. `> 10 s` and `<= 1 ms` where the buckets end."""
    if value is None:
        return UNKNOWN
    if value.high is None:
        return f"> {seconds(value.low)}"
    if value.censored == "below_first_edge":
        return f"<= {seconds(value.high)}"
    text = seconds(value.value)
    if not bounds or value.low == value.high:
        return text
    low, high = seconds(value.low), seconds(value.high)
    if low.rpartition(" ")[2] == high.rpartition(" ")[2] or value.low == 0:
        low = low.rpartition(" ")[0]
    if high.rpartition(" ")[2] == text.rpartition(" ")[2]:
        high = high.rpartition(" ")[0]
    return f"{text} ({low}-{high})"


def safe(text: str) -> str:
    """Names and errors come from outside: none of them may steer the terminal or begin a line of its own."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def verdict_style(verdict: str | None) -> str:
    return {None: "dim", "healthy": "bold green", "unknown": "bold yellow"}.get(verdict, "bold red")


def state_style(state: str) -> str:
    return _STATE_STYLE.get(state, "red")


def name(engine: EngineReport) -> str:
    """target, and the engine where a target can have several."""
    return safe(engine.key.target) + ("" if engine.key.engine in ("", "0") else f" engine {safe(engine.key.engine)}")


def needs_a_look(engine: EngineReport) -> bool:
    return engine.verdict not in (None, "healthy") or engine.state in ("stale", "down", "no_engine_metrics")


# --- lines: the overview, replay and the demo -------------------------------------------------------------------

COLUMNS = ("time", "engine", "state", "verdict", "conf.", "TTFT p99", "ITL p99", "run", "wait", "KV")


def row(engine: EngineReport, at: float) -> tuple[str, ...]:
    """One engine in one line, in the order of COLUMNS."""
    numbers = engine.numbers
    clock = when(at) if at > _UNIX else f"{at:.0f} s"
    confidence = engine.confidence if engine.verdict not in (None, "healthy") else None
    head = (clock, name(engine), engine.state, engine.verdict or UNKNOWN, confidence or UNKNOWN)
    if numbers is None:
        return (*head, *(UNKNOWN,) * 5)
    return (
        *head,
        estimate(numbers.ttft_seconds.p99, bounds=False),
        estimate(numbers.itl_seconds.p99, bounds=False),
        number(numbers.queue.running),
        number(numbers.queue.waiting),
        ratio(numbers.kv_cache.usage_ratio),
    )


def overview(engines: Iterable[EngineReport]) -> Table:
    """One line an engine: the verdict, or the state where there is none."""
    table = grid("engine", "verdict", *COLUMNS[4:])
    for engine in engines:
        _, label, state, verdict, *rest = row(engine, 0.0)
        style = verdict_style(engine.verdict) if engine.verdict else state_style(state)
        table.add_row(Text(label, style="bold"), Text(state if engine.verdict is None else verdict, style=style), *rest)
    return table


# Widths for lines that come one at a time: nobody knows the rows to come, so a long name shifts its own line only.
_WIDTHS = (8, 12, 10, 21, 6, 8, 7, 4, 4, 5)


def header() -> str:
    return line(COLUMNS)


def line(cells: Iterable[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def grid(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
