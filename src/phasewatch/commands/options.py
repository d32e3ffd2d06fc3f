"""Options that several commands have, and how their values are read."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args

import typer

from phasewatch.core.durations import parse_duration
from phasewatch.core.pages.catalog import LATEST_UNIX
from phasewatch.core.settings import Estimator


def positive(text: str) -> float:
    """A duration above zero, in seconds."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if seconds <= 0:
        raise typer.BadParameter("must be above zero")
    return seconds


def seconds_at(text: str) -> float:
    """A moment in seconds, of a recording or in Unix time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < LATEST_UNIX:
        raise typer.BadParameter(f"invalid moment {text!r}; use seconds, such as 90 or 1700000000")
    return seconds


def one_of(*allowed: str) -> dict[str, Any]:
    """For typer.Option(...): the value is one of these words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"unknown value {text!r}; use {' or '.join(allowed)}")
        return text

    return {"parser": parse, "metavar": "|".join(allowed), "autocompletion": _completion(allowed)}


def _completion(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in allowed if word.startswith(incomplete)]


Interval = Annotated[float, typer.Option(parser=positive, metavar="DURATION", help="Time between two scrapes.")]
Objective = Annotated[
    list[str],
    typer.Option(
        "--objective",
        metavar="NAME=DURATION",
        help="Limit to judge by, such as ttft_p99=2.5s or MODEL:itl_p99=100ms; may be given several times.",
        show_default="profile standard",
    ),
]
EstimatorOption = Annotated[
    Estimator,
    typer.Option("--estimator", help="How percentiles are read from the buckets.", **one_of(*get_args(Estimator))),
]
WINDOW_HELP = "Length of the window that verdicts judge."
