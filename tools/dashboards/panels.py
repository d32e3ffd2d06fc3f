"""What a dashboard is made of: frozen rows without anything of Grafana's format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["timeseries", "stacked", "table", "timeline", "heatmap", "text", "stat", "bars"]


@dataclass(frozen=True)
class Query:
    """PromQL and the name of its series. In tables the name is the title of the value's column ("" hides it)."""

    expr: str
    name: str


@dataclass(frozen=True)
class Panel:
    """kind "stacked": shares of a whole as areas; "bars": one bar a series, now.

    unit: Grafana's id of the unit. units: other units by series or column; in graphs these get the right axis.
    names: titles of a table's label columns; others are hidden. colours: by value (timeline) or by series.
    links: column of a table -> dashboard's uid; the row's target and engine go along. text: Markdown.
    """

    kind: Kind
    title: str
    description: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    no_value: str = "No data"
    width: int = 12
    height: int = 8
    units: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    sort: str = ""
    largest: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Row:
    """A titled row. repeat: a variable; the row is shown once for each of its values."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""
    collapsed: bool = False


@dataclass(frozen=True)
class Variable:
    """A query variable. single: one value, without All."""

    name: str
    label: str
    query: str
    single: bool = False
    all_value: str = ".+"
    descending: bool = False


@dataclass(frozen=True)
class Dashboard:
    """marks: whether restarts and firing alerts are drawn as annotations."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: bool = True
    since: str = "now-3h"
