"""Two sides side by side, as `compare` prints them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from phasewatch.core.fleet import ModelKey
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.model import Estimate
from phasewatch.core.report.compare import LOAD_LABELS, Change, ComparedRow, Comparison, LoadRow, ModelNumbers
from phasewatch.core.report.measure_table import LATENCIES, PHASES
from phasewatch.outputs import terminal

SCHEMA = "phasewatch/compare/v1"
_STYLES = {"better": "green", "worse": "red", "mixed": "yellow", "not comparable": "yellow"}


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two sources says, by model."""

    source: str
    models: Mapping[ModelKey, ModelNumbers]


@dataclass(frozen=True, slots=True)
class Compared:
    """found: each pair of models, before and after, and what came of it."""

    before: Side
    after: Side
    found: Sequence[tuple[tuple[ModelKey, ModelKey], Comparison]]


def named(key: ModelKey) -> str:
    return f"{key[0] or 'unnamed model'}{f' ({key[1]})' if key[1] else ''}"


def print_document(compared: Compared, out: TextIO) -> None:
    before, after, found = compared.before, compared.after, compared.found
    document = {
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
    print(json.dumps(document, allow_nan=False), file=out, flush=True)


def _about(side: Side, key: ModelKey) -> dict[str, Any]:
    one = side.models[key]
    return {
        "source": side.source,
        "model_name": key[0],
        "role": key[1],
        "engines": one.engines,
        "window_seconds": one.numbers.window_seconds,
    }


def print_tables(compared: Compared, out: TextIO) -> None:
    shown = terminal.console(out)
    for index, (keys, comparison) in enumerate(compared.found):
        if index:
            shown.print()
        shown.print(Text(terminal.safe(comparison.sentence), style=_STYLES.get(comparison.conclusion, "bold")))
        for label, side, key in (("before", compared.before, keys[0]), ("after", compared.after, keys[1])):
            one = side.models[key]
            engines = f"{one.engines} engine{'' if one.engines == 1 else 's'}"
            length = seconds(one.numbers.window_seconds)
            shown.print(
                Text(terminal.safe(f"{label:<6}  {side.source}  {named(key)}, {engines}, {length}"), style="dim")
            )
        shown.print()
        shown.print(_table(comparison))


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


_UNITS = {"per_second": "/s", "tokens": " tokens", "tokens_per_second": " tok/s", "requests": ""}
_ALIKE = {True: "alike", False: "unlike", None: "unknown"}
_LABELS = {
    **LOAD_LABELS,
    **{family: label for family, label, _ in LATENCIES},
    **{f"{phase}_mean": label for phase, label in PHASES},
    "generation_speed": "generated",
    "prefix_hits": "prefix hits",
    "kv_capacity": "KV capacity",
    "gave_up": "gave up",
}


def _label(name: str) -> str:
    head, _, tail = name.partition("_")
    return _LABELS.get(name) or f"{_LABELS.get(head, head)} {tail}".strip()


def _load_cells(row: LoadRow) -> tuple[str, str, str, str]:
    unit = _UNITS[row.unit]
    old, new = (terminal.UNKNOWN if one is None else f"{number(one)}{unit}" for one in (row.before, row.after))
    change = terminal.UNKNOWN if not row.before or row.after is None else f"{_signed(row.after / row.before - 1)} %"
    return old, new, change, _ALIKE[row.alike]


def _cell(row: ComparedRow, value: Estimate | None) -> str:
    if value is None:
        return terminal.UNKNOWN
    if row.unit == "seconds":
        # What chance may do to a mean shows in the change; the mean itself is exact.
        return seconds(value.value) if row.name.endswith("_mean") else terminal.estimate(value)
    return percent(value.value) if row.unit == "ratio" else f"{number(value.value)}{_UNITS[row.unit]}"


def _change(change: Change | None) -> str:
    if change is None:
        return terminal.UNKNOWN
    if change.low == change.high:
        return f"{_signed(change.ratio)} %"
    high = "?" if change.high is None else _signed(change.high)
    return f"{_signed(change.ratio)} % ({_signed(change.low)} to {high})"


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.0f}"
