"""Kinds of option values: the closed sets, and how a duration or a speed is read."""

from enum import StrEnum
from typing import Annotated

import typer

from phasewatch.core.durations import parse_duration


class DiagnoseFormat(StrEnum):
    table = "table"
    json = "json"


class ReplayFormat(StrEnum):
    jsonl = "jsonl"
    table = "table"
    openmetrics = "openmetrics"


class ExportWhat(StrEnum):
    dashboards = "dashboards"
    rules = "rules"
    all = "all"


class ExportFormat(StrEnum):
    files = "files"
    kubernetes = "kubernetes"


class EstimatorName(StrEnum):
    sums = "sums"
    interpolation = "interpolation"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    logfmt = "logfmt"
    json = "json"


def duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def positive(text: str) -> float:
    seconds = duration(text)
    if seconds <= 0:
        raise typer.BadParameter("must be above zero")
    return seconds


def speed(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1000:
        raise typer.BadParameter(f"{text!r} is no speed; write a number such as 4, at most 1000")
    return number


Objective = Annotated[
    list[str],
    typer.Option(
        "--objective",
        metavar="NAME=DURATION",
        help="Limit to judge by, such as ttft_p99=2.5s or MODEL:itl_p99=100ms; may be given several times.",
        show_default="profile standard",
    ),
]
EstimatorOption = Annotated[EstimatorName, typer.Option(help="How percentiles are read from the buckets.")]
WINDOW_HELP = "Length of the window that verdicts judge."
ExportLabels = Annotated[
    list[str],
    typer.Option(
        "--label", metavar="NAME=VALUE", help="With --format kubernetes: a label that your operator selects by."
    ),
]
