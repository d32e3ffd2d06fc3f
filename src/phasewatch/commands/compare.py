"""`phasewatch compare`: two recordings or diagnosis documents -> did the change help, and was the load alike."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.commands.common import console, note, recording_of
from phasewatch.core.fleet import ModelKey
from phasewatch.core.measures.numbers import arrivals_per_second, numbers
from phasewatch.core.measures.window import fleet_window, since, window
from phasewatch.core.model import Estimate, Numbers, Snapshot, Window
from phasewatch.core.pages.exposition import ExpositionError, PageReader
from phasewatch.core.report.compare import Change, Comparison, LoadRow, Row, compare, settled
from phasewatch.core.settings import Estimator, Thresholds
from phasewatch.outputs import lines as show
from phasewatch.sources.documents import DocumentError, ModelNumbers, read_document
from phasewatch.sources.recording import Recording, TargetRecording
from phasewatch.sources.replaying import span

SCHEMA = "phasewatch/compare/v1"
EXIT_NOT_COMPARABLE = 1
_UNIX = 1e8  # nobody types Unix time: on a recording that has it, small numbers count from its start
_STYLES = {"better": "green", "worse": "red", "mixed": "yellow", "not comparable": "yellow"}


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two sources says, by model."""

    source: str
    models: Mapping[ModelKey, ModelNumbers]


def run(
    before: str,
    after: str,
    *,
    length: float | None,
    before_at: float | None,
    after_at: float | None,
    as_json: bool,
    estimator: Estimator,
) -> int:
    """Prints the comparison. 0: every model could be compared; 1: one could not."""
    thresholds = Thresholds()
    old = _side(before, length, before_at, "--before-at", thresholds, estimator)
    new = _side(after, length, after_at, "--after-at", thresholds, estimator)
    pairs = _pairs(old, new)
    found = [(keys, compare(old.models[keys[0]].numbers, new.models[keys[1]].numbers, thresholds)) for keys in pairs]
    if as_json:
        print(json.dumps(_document(old, new, found), allow_nan=False))
    else:
        _show(old, new, found)
    return EXIT_NOT_COMPARABLE if any(one.conclusion == "not comparable" for _, one in found) else 0


Found = Sequence[tuple[tuple[ModelKey, ModelKey], Comparison]]


# --- the two sides ------------------------------------------------------------------------------------------------


def _side(
    text: str, length: float | None, at: float | None, option: str, thresholds: Thresholds, estimator: Estimator
) -> Side:
    path = Path(text)
    if "://" in text:
        raise CommandError(f"{text}: compare reads what was kept: `phasewatch diagnose {text} --format json > FILE`")
    if path.is_file():
        if at is not None or length is not None:
            used = option if at is not None else "--window"
            raise CommandError(f"{used} picks a stretch of a recording; {text} is a document and has one window")
        try:
            models = read_document(path)
        except DocumentError as error:
            raise CommandError(str(error), code=EXIT_NOTHING_READ) from None
    else:
        models = _of_recording(text, recording_of(path), length, at, thresholds, estimator)
    if not models:
        raise CommandError(f"{text}: no engine to compare", code=EXIT_NOTHING_READ)
    return Side(text, models)


def _of_recording(
    text: str,
    recording: Recording,
    length: float | None,
    at: float | None,
    thresholds: Thresholds,
    estimator: Estimator,
) -> Mapping[ModelKey, ModelNumbers]:
    first, end = span(recording)
    until = end if at is None else at if at >= first or first < _UNIX else first + at
    begin = first if length is None else until - length
    windows: dict[ModelKey, list[Window]] = {}
    unread = 0
    for target in recording.targets:
        engines, failed = _pages(target, until)
        unread += failed
        for (model_name, _), pages in sorted(engines.items()):
            one = window(since(settled(pages, thresholds), begin))
            if one is not None:
                windows.setdefault((model_name, None), []).append(one)
    if unread:
        note(f"{text}: {unread} pages could not be read and are left out")
    if not windows:
        raise CommandError(
            f"{text}: nothing to compare between second {max(begin, first):g} and {until:g}: an engine's first"
            f" {thresholds.warm_seconds:g} s and {thresholds.warm_pages} pages are its warm-up",
            code=EXIT_NOTHING_READ,
        )
    return {key: ModelNumbers(_merged(parts, thresholds, estimator), len(parts)) for key, parts in windows.items()}


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


def _merged(parts: Sequence[Window], thresholds: Thresholds, estimator: Estimator) -> Numbers:
    """A model's engines as one. Who arrived is each engine's own: a merged window has no first and last page."""
    whole = fleet_window(parts) if len(parts) > 1 else parts[0]
    assert whole is not None
    merged = numbers(whole, thresholds, estimator=estimator)
    arrived = [arrivals_per_second(one) for one in parts]
    known = [rate for rate in arrived if rate is not None]
    total = sum(known) if len(known) == len(arrived) else None
    return replace(merged, queue=replace(merged.queue, arrivals_per_second=total))


def _pairs(before: Side, after: Side) -> Sequence[tuple[ModelKey, ModelKey]]:
    """Models of the same name and role; where each side has but one other, these two: a quantised model is renamed."""
    pairs = [(key, key) for key in before.models if key in after.models]
    left = [[key for key in one.models if (key, key) not in pairs] for one in (before, after)]
    if len(left[0]) == len(left[1]) == 1:
        note(f"comparing {_name(left[0][0])} with {_name(left[1][0])}: the only model on each side that is left")
        return [*pairs, (left[0][0], left[1][0])]
    for side, keys in zip((before, after), left, strict=True):
        for key in keys:
            note(f"{side.source}: {_name(key)} is only on this side")
    if not pairs:
        raise CommandError(f"{before.source} and {after.source} have no model in common", code=EXIT_NOT_COMPARABLE)
    return pairs


def _name(key: ModelKey) -> str:
    return f"{key[0] or 'unnamed model'}{f' ({key[1]})' if key[1] else ''}"


# --- output -------------------------------------------------------------------------------------------------------


def _document(before: Side, after: Side, found: Found) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "models": [
            {
                "before": _about(before, keys[0]),
                "after": _about(after, keys[1]),
                **asdict(comparison),
            }
            for keys, comparison in found
        ],
    }


def _about(side: Side, key: ModelKey) -> dict[str, Any]:
    one = side.models[key]
    return {
        "source": side.source,
        "model_name": key[0],
        "role": key[1],
        "engines": one.engines,
        "window_seconds": one.numbers.window_seconds,
    }


def _show(before: Side, after: Side, found: Found) -> None:
    out = console(sys.stdout)
    for index, (keys, comparison) in enumerate(found):
        if index:
            out.print()
        out.print(Text(show.safe(comparison.sentence), style=_STYLES.get(comparison.conclusion, "bold")))
        for label, side, key in (("before", before, keys[0]), ("after", after, keys[1])):
            one = side.models[key]
            engines = f"{one.engines} engine{'' if one.engines == 1 else 's'}"
            seconds = show.seconds(one.numbers.window_seconds)
            out.print(Text(show.safe(f"{label:<6}  {side.source}  {_name(key)}, {engines}, {seconds}"), style="dim"))
        out.print()
        out.print(_table(comparison))


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column in ("", "before", "after", "change", ""):
        table.add_column(column, no_wrap=True)
    for load in comparison.load:
        table.add_row(_LABELS[load.name], *_load_cells(load))
    for row in comparison.rows:
        if row.before is not None or row.after is not None:
            word = Text(row.outcome or "", style=_STYLES.get(row.outcome or "", ""))
            table.add_row(_label(row.name), _cell(row, row.before), _cell(row, row.after), _change(row.change), word)
    return table


_UNITS = {"per_second": "/s", "tokens": " tokens", "tokens_per_second": " tok/s"}
_ALIKE = {True: "alike", False: "unlike", None: "unknown"}
_LABELS = {
    "arrivals": "arrivals",
    "prompt_length": "prompts",
    "output_length": "answers",
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "queue_mean": "queue",
    "prefill_mean": "prefill",
    "decode_mean": "decode",
    "frontend_mean": "front end",
    "generation_speed": "generated",
    "gave_up": "gave up",
}


def _label(name: str) -> str:
    head, _, tail = name.partition("_")
    return _LABELS.get(name) or f"{_LABELS.get(head, head)} {tail}".strip()


def _load_cells(row: LoadRow) -> tuple[str, str, str, str]:
    unit = _UNITS[row.unit]
    old, new = (show.UNKNOWN if one is None else f"{show.number(one)}{unit}" for one in (row.before, row.after))
    change = show.UNKNOWN if not row.before or row.after is None else f"{_signed(row.after / row.before - 1)} %"
    return old, new, change, _ALIKE[row.alike]


def _cell(row: Row, value: Estimate | None) -> str:
    if value is None:
        return show.UNKNOWN
    if row.unit == "seconds":
        # What chance may do to a mean shows in the change; the mean itself is exact.
        return show.seconds(value.value) if row.name.endswith("_mean") else show.estimate(value)
    return show.ratio(value.value) if row.unit == "ratio" else f"{show.number(value.value)}{_UNITS[row.unit]}"


def _change(change: Change | None) -> str:
    if change is None:
        return show.UNKNOWN
    if change.low == change.high:
        return f"{_signed(change.ratio)} %"
    high = "?" if change.high is None else _signed(change.high)
    return f"{_signed(change.ratio)} % ({_signed(change.low)} to {high})"


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.0f}"
