"""`phasewatch compare`: two recordings or diagnosis documents -> did the change help, and was the load alike."""

import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.commands.common import moment, note, recording_of
from phasewatch.commands.options import EstimatorOption, one_of, positive, seconds_at
from phasewatch.core.fleet import ModelKey, joined
from phasewatch.core.measures.numbers import numbers
from phasewatch.core.measures.window import fleet_window, since
from phasewatch.core.measures.window import window as window_of
from phasewatch.core.model import Snapshot, Step
from phasewatch.core.pages.exposition import ExpositionError, PageReader
from phasewatch.core.report.compare import Comparison, ModelNumbers, busy, compare, facts_of, settled
from phasewatch.core.settings import Settings
from phasewatch.outputs.comparison import Compared, Side, named
from phasewatch.outputs.formats import FORMATS
from phasewatch.sources.documents import DocumentError, read_document
from phasewatch.sources.packed import is_packed
from phasewatch.sources.recording import Recording, TargetRecording
from phasewatch.sources.replaying import span

PRINTS = {name: row.compared for name, row in FORMATS.items() if row.compared is not None}
EXIT_NOT_COMPARABLE = 1


def _moment_of(side: str) -> Any:
    return typer.Option(
        parser=seconds_at,
        metavar="SECONDS",
        help=f"Moment of {side} at which to stop reading.",
        show_default="its end",
    )


def command(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A recording, or a diagnosis document (JSON file).")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same after the change.")],
    window: Annotated[
        float | None,
        typer.Option(
            parser=positive,
            metavar="DURATION",
            help="Compare only this long before the moment (or the end) of each recording.",
            show_default="all but the warm-up",
        ),
    ] = None,
    before_at: Annotated[float | None, _moment_of("BEFORE")] = None,
    after_at: Annotated[float | None, _moment_of("AFTER")] = None,
    format: Annotated[str, typer.Option(help="Output.", **one_of(*PRINTS))] = "table",
    estimator: EstimatorOption = "sums",
) -> None:
    """Both may be one recording, with a moment for each.

    Exit code 0: compared, whatever came out. 1: not comparable. 2: wrong usage. 3: nothing could be read.
    """
    settings = Settings(estimator=estimator)
    old = _side(before, window, before_at, "--before-at", settings)
    new = _side(after, window, after_at, "--after-at", settings)
    pairs = _pairs(old, new)
    found = [(keys, _compared(old.models[keys[0]], new.models[keys[1]], settings)) for keys in pairs]
    PRINTS[format](Compared(old, new, found), sys.stdout)
    raise typer.Exit(EXIT_NOT_COMPARABLE if any(one.conclusion == "not comparable" for _, one in found) else 0)


def _compared(before: ModelNumbers, after: ModelNumbers, settings: Settings) -> Comparison:
    return compare(before.numbers, after.numbers, settings.thresholds, before.facts, after.facts)


# --- the two sides ------------------------------------------------------------------------------------------------


def _side(text: str, length: float | None, at: float | None, option: str, settings: Settings) -> Side:
    path = Path(text)
    if "://" in text:
        raise CommandError(
            f"{text}: compare reads files; write one with: phasewatch diagnose {text} --format json > FILE"
        )
    if path.is_file() and not is_packed(text):
        if at is not None or length is not None:
            used = option if at is not None else "--window"
            raise CommandError(f"{used} applies to recordings only, and {text} is a document; remove it")
        try:
            models = read_document(path)
        except DocumentError as error:
            raise CommandError(str(error), code=EXIT_NOTHING_READ) from None
    else:
        models = _of_recording(text, recording_of(path), length, at, settings)
    if not models:
        raise CommandError(f"{text}: no engine to compare", code=EXIT_NOTHING_READ)
    return Side(text, models)


def _of_recording(
    text: str,
    recording: Recording,
    length: float | None,
    at: float | None,
    settings: Settings,
) -> Mapping[ModelKey, ModelNumbers]:
    thresholds = settings.thresholds
    first, end = span(recording)
    until = moment(at, first, end)
    begin = first if length is None else until - length
    found: dict[ModelKey, list[tuple[Sequence[Step], Mapping[str, str]]]] = {}
    unread = 0
    for target in recording.targets:
        engines, failed = _pages(target, until)
        unread += failed
        for (model_name, _), pages in sorted(engines.items()):
            steps = since(settled(pages, thresholds), begin)
            if steps:
                found.setdefault((model_name, None), []).append((steps, pages[-1].labels))
    if unread:
        note(f"{text}: {unread} scrapes could not be read and are left out")
    models = {key: numbers for key, parts in found.items() if (numbers := _together(parts, settings, key[0]))}
    if not models:
        raise CommandError(
            f"{text}: nothing to compare between second {max(begin, first):g} and {until:g}: an engine's first"
            f" {thresholds.warm_seconds:g} s and {thresholds.warm_pages} scrapes are its warm-up",
            code=EXIT_NOTHING_READ,
        )
    return models


def _pages(target: TargetRecording, until: float) -> tuple[Mapping[tuple[str, str], list[Snapshot]], int]:
    """Pages of each engine, and how many scrapes of the target gave none."""
    engines: dict[tuple[str, str], list[Snapshot]] = {}
    reader, failed = PageReader(), 0
    for entry in target.entries:
        if entry.seconds > until:
            break
        if entry.reason is not None:
            failed += 1
            continue
        try:
            page = reader.read(entry.read(), at=entry.seconds, content_type=entry.content_type)
        except ExpositionError:
            failed += 1
            continue
        for key, snapshot in page.engines.items():
            engines.setdefault(key, []).append(snapshot)
    return engines, failed


def _together(
    parts: Sequence[tuple[Sequence[Step], Mapping[str, str]]], settings: Settings, model_name: str
) -> ModelNumbers | None:
    """A model's engines as one, from when the first of them had anything to do until when the last one had."""
    worked = [times for steps, _ in parts if (times := busy(steps)) is not None]
    begin, end = (min(at for at, _ in worked), max(at for _, at in worked)) if worked else (-inf, inf)
    windows = [
        one
        for steps, _ in parts
        if (one := window_of([step for step in steps if begin <= step.start and step.end <= end])) is not None
    ]
    whole = fleet_window(windows)
    if whole is None:
        return None
    stall_seconds = settings.stall_seconds(model_name)
    own = [
        numbers(one, settings.thresholds, stall_seconds=stall_seconds, estimator=settings.estimator) for one in windows
    ]
    together = (joined(own, windows, settings, model_name) if len(windows) > 1 else None) or own[0]
    return ModelNumbers(together, len(windows), facts_of(whole, windows, stall_seconds, _common(parts)))


def _common(parts: Sequence[tuple[Sequence[Step], Mapping[str, str]]]) -> Mapping[str, str]:
    """Configuration that all engines share: what differs between them (their number) is no change."""
    _, first = parts[0]
    return {name: value for name, value in first.items() if all(one.get(name) == value for _, one in parts)}


def _pairs(before: Side, after: Side) -> Sequence[tuple[ModelKey, ModelKey]]:
    """Models of the same name and role; where each side has but one other, these two: a quantised model is renamed."""
    pairs = [(key, key) for key in before.models if key in after.models]
    left = [[key for key in one.models if (key, key) not in pairs] for one in (before, after)]
    if len(left[0]) == len(left[1]) == 1:
        note(f"comparing {named(left[0][0])} with {named(left[1][0])}: each is the only model left on its side")
        return [*pairs, (left[0][0], left[1][0])]
    for side, keys in zip((before, after), left, strict=True):
        for key in keys:
            note(f"{side.source}: {named(key)} is only on this side")
    if not pairs:
        raise CommandError(f"{before.source} and {after.source} have no model in common", code=EXIT_NOT_COMPARABLE)
    return pairs
