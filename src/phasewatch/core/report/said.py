"""Numbers in the words of their rows: for the terminal as text, for the web page as data to make the same text of."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from phasewatch.core.diagnosis.objectives import counted, measured, name_of
from phasewatch.core.diagnosis.opinion import STATE_TEXTS
from phasewatch.core.formatting import figures, number, percent, seconds
from phasewatch.core.model import SUSPICIOUS, TROUBLE, Event, EventKind, Latency, Numbers, ObjectiveResult, Result
from phasewatch.core.report.measure_table import LATENCIES, MEASURES, PHASES, Measure, value_at

# block of Numbers, what it is called
GROUPS: tuple[tuple[str, str], ...] = (("queue", "Queue"), ("kv_cache", "KV cache"), ("tokens", "Tokens"))
# Symptoms whose value is a share, not a time, and of what.
SHARES: Mapping[str, str] = {
    "itl_stall": " of the streaming time in gaps",
    "requests_failing": " of the requests",
    "gave_up": " of them",
    "kv_transfers_failing": " of the KV transfers",
}
# What happened to an engine; the document has before and after as they are.
_EVENTS: Mapping[EventKind, str] = {
    "start": "started",
    "restart": "restarted",
    "wake_up": "woke up",
    "model": "model {before} -> {after}",
    "version": "vLLM version: configuration keys {before} are gone, {after} are new",
    "capacity": "KV cache {before} -> {after} tokens",
    "adapters": "LoRA adapters {before} -> {after}",
    "configuration": "configuration {before} -> {after}",
}
# Of an objective. What could not be judged never reads like what is met.
RESULTS: Mapping[Result, str] = {
    "met": "met",
    "missed": "missed",
    "too_few": "too few to judge",
    "cannot_tell": "cannot tell",
    "no_data": "no data",
}
OBJECTIVE_COLUMNS: tuple[str, ...] = ("objective", "result", "measured", "limit", "over it")
# What a narrow terminal and a card have room for.
PERCENTILES: tuple[str, ...] = ("p50", "p90", "p99")


def latencies(numbers: Numbers) -> Iterator[tuple[str, Latency]]:
    """(TTFT, its latency): of those that anything was observed of."""
    for signal, label, _ in LATENCIES:
        latency: Latency = getattr(numbers, f"{signal}_seconds")
        if latency.count or latency.mean is not None:
            yield label, latency


def objective_row(one: ObjectiveResult, value: str) -> tuple[str, ...]:
    """In the order of OBJECTIVE_COLUMNS. value: its estimate, as latencies are written beside it."""
    sure = " (possibly)" if one.result == "missed" and not one.surely else ""
    shown = measured(one) if one.objective in SHARES else value
    of = "" if one.result == "no_data" else counted(one, one.over)
    return name_of(one.objective), RESULTS[one.result] + sure, shown, seconds(one.limit_seconds), of


def facts(numbers: Numbers) -> Iterator[tuple[str, str]]:
    """(Queue, "2 running, 14 waiting, +0.21/s"): one line a group, of those that have something to say."""
    for group, label in GROUPS:
        told = [say(measure, numbers) for measure in MEASURES if measure.path.startswith(f"{group}.")]
        text = ", ".join(part for part in told if part)
        if text:
            yield label, text


def say(measure: Measure, numbers: Numbers) -> str | None:
    """None where it is not known, or its row says that it is not worth a word."""
    said, value = measure.said, measure.of(numbers)
    if said is None or value is None or not said.least <= abs(value) <= said.most:
        return None
    over = "over " if said.bound and value_at(numbers, said.bound) else ""
    return said.text.replace("{+}", f"{value:+.2f}").replace("{}", over + _value(measure, value))


def happened(event: Event) -> str:
    """ "KV cache 64,000 -> 32,000 tokens"."""
    return _EVENTS[event.kind].format(before=_side(event.before), after=_side(event.after))


def _side(value: float | str | None) -> str:
    return "none" if value is None or value == "" else value if isinstance(value, str) else number(value)


def _value(measure: Measure, value: float) -> str:
    match measure.unit:
        case "seconds":
            return seconds(value)
        case "ratio":
            return percent(value)
        case "tokens":
            return number(round(value))
        case "per_second":
            return figures(value)
    return number(value)


def vocabulary() -> dict[str, Any]:
    """What the web page needs to say the same of a row of the document; most null: no upper limit."""
    return {
        "states": dict(STATE_TEXTS),
        "events": dict(_EVENTS),
        "trouble": TROUBLE,
        "suspicious": SUSPICIOUS,
        "shares": list(SHARES),
        "results": dict(RESULTS),
        "latencies": [{"key": f"{signal}_seconds", "label": label} for signal, label, _ in LATENCIES],
        "percentiles": PERCENTILES,
        "phases": [{"key": phase, "label": label} for phase, label in PHASES],
        "groups": [
            {
                "label": label,
                "numbers": [
                    {
                        "path": measure.path,
                        "unit": measure.unit,
                        "text": measure.said.text,
                        "least": measure.said.least,
                        "most": measure.said.most if isfinite(measure.said.most) else None,
                        "bound": measure.said.bound or None,
                    }
                    for measure in MEASURES
                    if measure.said is not None and measure.path.startswith(f"{group}.")
                ],
            }
            for group, label in GROUPS
        ],
    }
