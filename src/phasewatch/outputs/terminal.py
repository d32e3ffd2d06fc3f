"""A Fleet for human eyes: what `diagnose` prints, and lines for replay and the demo. Pure: builds rich renderables.

Rich drops colours on its own where NO_COLOR is set or the output is no terminal.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasewatch.core.diagnosis.overdue import said_of
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.model import (
    Anomaly,
    Cause,
    EngineReport,
    Estimate,
    Fleet,
    ModelReport,
    Numbers,
    ObjectiveResult,
    Phases,
    Remedy,
    Symptom,
    TargetReport,
)
from phasewatch.core.pages.catalog import EARLIEST_UNIX
from phasewatch.core.report.document import engine_order
from phasewatch.core.report.measure_table import PHASES
from phasewatch.core.report.said import (
    OBJECTIVE_COLUMNS,
    PERCENTILES,
    SHARES,
    facts,
    happened,
    latencies,
    objective_row,
)

UNKNOWN = "-"  # in a table
# Every other state wants a look first.
_STATE_STYLE = {
    "serving": "green",
    "idle": "dim",
    "asleep": "dim",
    "starting": "cyan",
    "warming_up": "cyan",
    "stale": "yellow",
}


def console(file: TextIO) -> Console:
    """Plain where the output is no terminal or NO_COLOR is set. Never reads markup or emoji out of names and errors."""
    return Console(file=file, highlight=False, markup=False, emoji=False)


def print_fleet(report: Fleet, out: TextIO) -> None:
    console(out).print(fleet(report))


def print_lines(fleets: Iterable[Fleet], out: TextIO) -> None:
    """A line an engine, for each Fleet as it comes."""
    print(header(), file=out)
    for report in fleets:
        for engine in sorted(report.engines, key=engine_order):
            print(line(row(engine, report.at)), file=out, flush=True)


def _cell(form: Callable[[float | None], str], value: float | None) -> str:
    return UNKNOWN if value is None else form(value)


def when(at: float | None) -> str:
    """Wall clock of this machine for Unix times, the recording's own seconds otherwise."""
    if at is None:
        return UNKNOWN
    if at >= EARLIEST_UNIX:
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


# --- lines: the overview, replay and the demo -------------------------------------------------------------------

COLUMNS = ("time", "engine", "state", "verdict", "conf.", "TTFT p99", "ITL p99", "run", "wait", "KV")


def row(engine: EngineReport, at: float) -> tuple[str, ...]:
    """One engine in one line, in the order of COLUMNS."""
    numbers = engine.numbers
    clock = when(at) if at >= EARLIEST_UNIX else f"{at:.0f} s"
    confidence = engine.confidence if engine.verdict not in (None, "healthy") else None
    head = (clock, name(engine), engine.state, engine.verdict or UNKNOWN, confidence or UNKNOWN)
    if numbers is None:
        return (*head, *(UNKNOWN,) * 5)
    return (
        *head,
        estimate(numbers.ttft_seconds.p99, bounds=False),
        estimate(numbers.itl_seconds.p99, bounds=False),
        _cell(number, numbers.queue.running),
        _cell(number, numbers.queue.waiting),
        _cell(percent, numbers.kv_cache.usage_ratio),
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


# --- blocks: what diagnose shows ---------------------------------------------------------------------------------

_BAR = 20
_PHASE_STYLES = {"queue": "yellow", "prefill": "blue", "decode": "magenta", "frontend": "cyan", "unexplained": "white"}
_REMEDY_WHEN = {"now": "now", "restart": "with a restart", "capacity": "more capacity"}


def fleet(report: Fleet) -> RenderableType:
    """Everything `diagnose` shows: an overview when there are several engines, then a block for each that needs one."""
    lonely = len(report.engines) == 1
    parts: list[RenderableType] = []
    if not lonely and report.engines:
        parts += [overview(sorted(report.engines, key=engine_order)), Text()]
        parts += [_model_line(m) for m in report.models if sum(m.engines.values()) > 1]
    advised: dict[tuple[Remedy, ...], str] = {}
    errors = {t.target: t.last_error for t in report.targets if t.last_error}
    for engine in sorted(report.engines, key=lambda e: (not e.wants_a_look, engine_order(e))):
        if lonely or engine.wants_a_look:
            parts += [
                *([Text()] if parts else []),
                engine_block(engine, report.at, advised, errors.get(engine.key.target)),
            ]
    for advisory in _common_advisories(report, lonely):
        parts.append(advisory)
    seen = {e.key.target for e in report.engines}
    parts += [target_line(t) for t in report.targets if t.target not in seen]
    parts += [anomaly_line(t, one) for t in report.targets for one in t.anomalies]
    if not lonely and report.engines and not any(one.wants_a_look for one in report.engines):
        parts.append(Text("Nothing to do.", style="green"))
    return Group(*parts)


def engine_block(
    engine: EngineReport, at: float, advised: dict[tuple[Remedy, ...], str], error: str | None = None
) -> Group:
    """One engine. advised: remedies already printed, by whose block: they are not printed twice."""
    head = Text()
    head.append(safe(engine.key.target), style="bold")
    head.append(safe(f"  model {engine.key.model_name or UNKNOWN}  engine {engine.key.engine or UNKNOWN}"))
    head.append(f"  {engine.role}" if engine.role else "")
    head.append("  ")
    head.append(engine.state, style=state_style(engine.state))
    head.append("  gauges stale" if engine.gauges_stale else "", style="yellow")
    head.append(f"  restarts: {engine.restarts}" if engine.restarts else "", style="yellow")
    body: list[RenderableType] = [_verdict_line(engine, at)]
    if error:
        body.append(Text(safe(error), style="red"))
    if engine.summary:
        body.append(Text(safe(engine.summary)))
    if engine.events:
        body.append(_labelled("events", "; ".join(events(engine))))
    if engine.symptoms:
        body.append(_labelled("missed", _join(map(symptom, engine.symptoms))))
    if any(one.observations for one in engine.objectives):
        body += [Text(" "), _objectives(engine.objectives)]
    if engine.numbers is not None:
        body += [Text(" "), *_numbers(engine.numbers)]
    body += _actions(engine, advised)
    return Group(head, *(Padding(part, (0, 0, 0, 2), expand=False) for part in body))


def _verdict_line(engine: EngineReport, at: float) -> Text:
    line = Text()
    if engine.verdict is None:
        line.append(f"no verdict: {engine.state.replace('_', ' ')}", style="bold")
        return line
    line.append(engine.verdict.upper(), style=verdict_style(engine.verdict))
    if engine.confidence and engine.verdict != "healthy":
        line.append(f"  confidence {engine.confidence}")
    if engine.since is not None:
        line.append(f"  for {seconds(at - engine.since)}, since {when(engine.since)}")
    if any(c.easing for c in engine.causes[:1]):
        line.append("  easing", style="green")
    return line


_EVENTS_SHOWN = 5


def events(engine: EngineReport) -> list[str]:
    """The last ones: "12:03:10 restarted"."""
    return [f"{when(one.at)} {happened(one)}" for one in engine.events[-_EVENTS_SHOWN:]]


def symptom(missed: Symptom) -> str:
    limit = f" over {seconds(missed.limit_seconds)}" if missed.limit_seconds is not None else ""
    value = f" {estimate(missed.value, bounds=False)}" if missed.value is not None else ""
    if missed.objective in SHARES and missed.value is not None:
        value = f" {percent(missed.value.value)}{SHARES[missed.objective]}"
    # A lower bound over the limit is sure of that request, if not of a percentile.
    sure = missed.surely or said_of(missed) is not None
    return f"{missed.objective}{value}{limit}{'' if sure else ' (possibly)'}"


_RESULT_STYLES = {"met": "green", "missed": "red", "no_data": "dim"}  # others: a look is worth it


def _objectives(objectives: Iterable[ObjectiveResult]) -> Table:
    table = grid(*OBJECTIVE_COLUMNS)
    for one in objectives:
        name, result, *rest = objective_row(one, estimate(one.value))
        table.add_row(name, Text(result, style=_RESULT_STYLES.get(one.result, "yellow")), *rest)
    return table


def _numbers(numbers: Numbers) -> Iterator[RenderableType]:
    table = grid("", *PERCENTILES, "mean", "count")
    for label, latency in latencies(numbers):
        cells = [estimate(getattr(latency, percentile)) for percentile in PERCENTILES]
        table.add_row(label, *cells, _cell(seconds, latency.mean), number(latency.count))
    if table.row_count:
        yield table
    else:
        yield Text(f"no request got a token in the last {seconds(numbers.window_seconds)}", style="dim")
    phases = _Phases(numbers.phases)
    if phases:
        yield Text(" ")
        yield phases
    told = Table.grid(padding=(0, 2))
    told.add_column(style="dim", no_wrap=True)
    told.add_column()
    for label, text in facts(numbers):
        told.add_row(label, text)
    if told.row_count:
        yield Text(" ")
        yield told


class _Phases:
    """Where the time of finished requests went, with a bar a phase."""

    def __init__(self, phases: Phases) -> None:
        self.rows = [(label, getattr(phases, phase), _PHASE_STYLES[phase]) for phase, label in PHASES]

    def __bool__(self) -> bool:
        return any(phase.mean_seconds is not None for _, phase, _ in self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full = "#" if options.ascii_only else "█"
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        for label, phase, style in self.rows:
            bar = Text(full * round(_BAR * (phase.share or 0)), style=style)
            known = phase.mean_seconds is not None
            table.add_row(label, _cell(seconds, phase.mean_seconds), percent(phase.share if known else None), bar)
        yield table


def _join(parts: Iterable[str | None]) -> str:
    return ", ".join(part for part in parts if part)


def _actions(engine: EngineReport, advised: dict[tuple[Remedy, ...], str]) -> Iterator[RenderableType]:
    leading, *others = engine.causes or (None,)
    if leading is not None:
        if leading.remedies:
            yield Text(" ")
            if leading.remedies in advised:
                yield Text(f"do first: as for {advised[leading.remedies]} above", style="bold")
            else:
                advised[leading.remedies] = name(engine)
                yield _remedies(leading.remedies)
        if leading.evidence:
            yield Text(" ")
            yield _labelled("evidence", _join(f"{k} {evidence(k, v)}" for k, v in leading.evidence.items()))
        if leading.refuted_by:
            yield _labelled("doubt it if", leading.refuted_by)
        also = [f"{c.symptom} (confidence {c.confidence})" for c in others if c and c.verdict == leading.verdict]
        if also:
            yield _labelled("explains", _join((f"{leading.symptom} (confidence {leading.confidence})", *also)))
    for cause in others:
        if cause is not None and cause.verdict != engine.verdict:
            yield _labelled("also", _other(cause))
    for advisory in engine.advisories:
        yield _labelled("note", f"{advisory.summary} {advisory.remedy}".strip())
    if engine.missing:
        yield _labelled("missing", _join(engine.missing))


def _other(cause: Cause) -> str:
    first = f" Do: {cause.remedies[0].change}." if cause.remedies else ""
    return f"{cause.verdict} (explains {cause.symptom}, confidence {cause.confidence}). {cause.summary}{first}"


# A piece of evidence is written as its name says; the web page's text.js does the same.
_EVIDENCE_FORMS = (
    (re.compile(r"_seconds$|^seconds_"), seconds),
    (re.compile(r"_(ratio|share)$|_share_of_|^kv_usage_"), percent),
)


def evidence(key: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return next((form(value) for name, form in _EVIDENCE_FORMS if name.search(key)), number(value))


def _labelled(label: str, text: str) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, min_width=12)
    table.add_column()
    table.add_row(f"{label}:", safe(text))
    return table


def _remedies(remedies: tuple[Remedy, ...]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=12)
    table.add_column()
    for index, remedy in enumerate(remedies):
        label = Text("do first:", style="bold") if index == 0 else Text("then:", style="dim")
        change, at, why, side_effect = remedy_parts(remedy)
        text = Text()
        text.append(change, style="bold" if index == 0 else "")
        text.append(at, style="cyan")
        text.append(why)
        text.append(side_effect, style="dim")
        table.add_row(label, text)
    return table


def remedy_parts(remedy: Remedy) -> tuple[str, str, str, str]:
    """What to change; when; why; at what cost. One after the other they are whole sentences."""
    since = f"vLLM {remedy.since} on" if remedy.since else None
    return (
        remedy.change,
        f" ({_join((_REMEDY_WHEN.get(remedy.when, remedy.when), since))})",
        f". {_sentence(remedy.why)}" if remedy.why else "",
        f" Side effect: {remedy.side_effect.rstrip('.')}." if remedy.side_effect != "none" else "",
    )


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _common_advisories(report: Fleet, lonely: bool) -> Iterator[RenderableType]:
    """Advisories of the engines that have no block of their own, each once with the engines it holds for."""
    holders: dict[tuple[str, str], list[str]] = {}
    for engine in report.engines:
        if not lonely and not engine.wants_a_look:
            for advisory in engine.advisories:
                holders.setdefault((advisory.summary, advisory.remedy), []).append(name(engine))
    for (summary, remedy), engines in holders.items():
        yield _labelled("note", f"{', '.join(engines)}: {summary} {remedy}".strip())


def _model_line(model: ModelReport) -> Text:
    line = Text()
    line.append(safe(model.model_name), style="bold")
    line.append(f" ({_join(f'{count} {state}' for state, count in model.engines.items() if count)}): ")
    line.append(model.verdict or "no verdict", style=verdict_style(model.verdict))
    numbers = model.numbers
    if numbers is not None and numbers.ttft_seconds.count:
        p99 = estimate(numbers.ttft_seconds.p99), estimate(numbers.itl_seconds.p99)
        line.append(f", together TTFT p99 {p99[0]}, ITL p99 {p99[1]}")
    return line


def anomaly_line(target: TargetReport, one: Anomaly) -> Text:
    times = f", {one.count} times" if one.count > 1 else ""
    return Text(f"{safe(target.target)}: {one.kind.replace('_', ' ')}{times}: {safe(one.last)}", style="yellow")


def target_line(target: TargetReport) -> Text:
    line = Text()
    line.append(safe(target.target), style="bold")
    line.append(f"  {target.state}", style=state_style(target.state))
    if target.starting_seconds is not None:
        line.append(f" for {seconds(target.starting_seconds)}; it has never answered and may be loading its model")
    line.append(f"  {safe(target.last_error)}" if target.last_error else "")
    return line
