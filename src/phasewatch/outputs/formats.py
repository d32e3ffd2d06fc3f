"""What commands print, one row a format. The choices of every --format come from here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.outputs import backfill, comparison, json, markdown, terminal
from phasewatch.outputs.comparison import Compared


@dataclass(frozen=True, slots=True)
class Format:
    """Prints what a command found; None where this format cannot.

    fleet: one Fleet, for `diagnose`. fleets: one after another, for `replay`. series: the same as samples with
    timestamps, from the settings and the seconds that turn the fleets' clock into Unix time. compared: for `compare`.
    """

    fleet: Callable[[Fleet, TextIO], None] | None = None
    fleets: Callable[[Iterable[Fleet], TextIO], None] | None = None
    series: Callable[[Iterable[Fleet], TextIO, Settings, float], None] | None = None
    compared: Callable[[Compared, TextIO], None] | None = None


FORMATS: Mapping[str, Format] = {
    "table": Format(fleet=terminal.print_fleet, fleets=terminal.print_lines, compared=comparison.print_tables),
    "json": Format(fleet=json.print_document, compared=comparison.print_document),
    "markdown": Format(fleet=markdown.print_fleet),
    "jsonl": Format(fleets=json.print_documents),
    "openmetrics": Format(series=backfill.print_series),
}
