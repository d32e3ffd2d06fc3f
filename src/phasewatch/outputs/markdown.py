"""A Fleet as Markdown, to be pasted into an issue or a chat: what `diagnose` prints on a terminal, without colours."""

import re
from collections.abc import Iterable, Iterator
from typing import TextIO

from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.model import Cause, EngineReport, Fleet, Numbers
from phasewatch.core.report.document import engine_order
from phasewatch.core.report.measure_table import PHASES
from phasewatch.core.report.said import OBJECTIVE_COLUMNS, PERCENTILES, facts, latencies, objective_row
from phasewatch.outputs.terminal import (
    COLUMNS,
    UNKNOWN,
    estimate,
    events,
    evidence,
    name,
    remedy_parts,
    row,
    safe,
    symptom,
)

# What Markdown, or the HTML in it, would read as markup.
_MARKUP = re.compile(r"([\\`*\[\]<>|#~&]|(?<!\w)_|_(?!\w))")


def print_fleet(report: Fleet, out: TextIO) -> None:
    print("\n".join(_lines(report)).rstrip(), file=out, flush=True)


def _text(text: str) -> str:
    """One line that reads as it is written."""
    return _MARKUP.sub(r"\\\1", safe(text))


def _code(text: str) -> str:
    """Names and errors come from outside: as code they are no markup, no link and nobody's mention."""
    inside = safe(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", inside)), default=0))
    space = " " if inside.startswith("`") or inside.endswith("`") else ""
    return f"{fence}{space}{inside}{space}{fence}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = tuple(head)
    for line in (cells, ("---",) * len(cells), *rows):
        yield f"| {' | '.join(line)} |"
    yield ""


def _lines(report: Fleet) -> Iterator[str]:
    engines = sorted(report.engines, key=lambda one: (not one.wants_a_look, engine_order(one)))
    errors = {target.target: target.last_error for target in report.targets if target.last_error}
    if len(engines) > 1:
        cells = (row(one, report.at)[1:] for one in engines)
        yield from _table(
            COLUMNS[1:], ((_code(first).replace("|", "\\|"), *map(_text, others)) for first, *others in cells)
        )
    for one in engines:
        if len(engines) == 1 or one.wants_a_look:
            yield from _engine(one, errors.get(one.key.target))
    seen = {one.key.target for one in engines}
    for target in report.targets:
        if target.target not in seen:
            error = f": {_code(target.last_error)}" if target.last_error else ""
            yield f"- {_code(target.target)} {_text(target.state)}{error}"


def _engine(engine: EngineReport, error: str | None) -> Iterator[str]:
    confidence = f" (confidence {engine.confidence})" if engine.confidence and engine.verdict != "healthy" else ""
    verdict = f"**{_text(engine.verdict)}**{confidence}" if engine.verdict else f"no verdict, {_text(engine.state)}"
    yield f"### {_code(name(engine))} {_code(engine.key.model_name or UNKNOWN)}: {verdict}"
    yield ""
    if error:
        yield f"- {_code(error)}"
    if engine.summary:
        yield f"- {_text(engine.summary)}"
    if engine.events:
        yield f"- Events: {_text('; '.join(events(engine)))}"
    if engine.symptoms:
        yield f"- Missed: {_text(', '.join(map(symptom, engine.symptoms)))}"
    leading, *others = engine.causes or (None,)
    if leading is not None and leading.evidence:
        known = (f"{_code(key)} {_text(evidence(key, value))}" for key, value in leading.evidence.items())
        yield f"- Evidence: {', '.join(known)}"
    if leading is not None and leading.refuted_by:
        yield f"- Doubt it if: {_text(leading.refuted_by)}"
    for cause in others:
        if cause is not None and cause.verdict != engine.verdict:
            about = f"explains {_text(cause.symptom)}, confidence {cause.confidence}"
            yield f"- Also: {_text(cause.verdict)} ({about}). {_text(cause.summary)}"
    for note in engine.advisories:
        yield f"- Note: {_text(f'{note.summary} {note.remedy}'.strip())}"
    if engine.missing:
        yield f"- Missing signals: {', '.join(map(_code, engine.missing))}"
    yield ""
    if leading is not None:
        yield from _remedies(leading)
    if any(one.observations for one in engine.objectives):
        rows = (objective_row(one, estimate(one.value)) for one in engine.objectives)
        yield from _table(OBJECTIVE_COLUMNS, (map(_text, cells) for cells in rows))
    if engine.numbers is not None:
        yield from _numbers(engine.numbers)


def _remedies(cause: Cause) -> Iterator[str]:
    for place, remedy in enumerate(cause.remedies, 1):
        change, *rest = map(_text, remedy_parts(remedy))
        yield f"{place}. **{change}**{''.join(rest)}"
    yield ""


def _numbers(numbers: Numbers) -> Iterator[str]:
    rows = []
    for label, latency in latencies(numbers):
        cells = (_text(estimate(getattr(latency, percentile))) for percentile in PERCENTILES)
        rows.append((label, *cells, seconds(latency.mean), number(latency.count)))
    if rows:
        yield from _table(("", *PERCENTILES, "mean", "count"), rows)
    parts = ((label, getattr(numbers.phases, phase)) for phase, label in PHASES)
    told = [
        f"{label} {seconds(part.mean_seconds)} ({percent(part.share)})"
        for label, part in parts
        if part.mean_seconds is not None
    ]
    if told:
        yield f"- Phases: {', '.join(told)}"
    for label, text in facts(numbers):
        yield f"- {label}: {_text(text)}"
    yield ""
