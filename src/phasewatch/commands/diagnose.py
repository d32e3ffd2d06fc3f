"""`phasewatch diagnose`: servers and recordings -> one verdict, as a table or the document."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from phasewatch.commands import EXIT_NOTHING_READ, EXIT_UNHEALTHY, CommandError
from phasewatch.commands.common import interruptible, moment, note, settings_of, source_of, unique
from phasewatch.commands.options import WINDOW_HELP, EstimatorOption, Interval, Objective, one_of, positive, seconds_at
from phasewatch.commands.watching import Watching, clock
from phasewatch.core.durations import format_duration
from phasewatch.core.model import TROUBLE, Fleet
from phasewatch.core.settings import Settings
from phasewatch.outputs import terminal
from phasewatch.outputs.formats import FORMATS
from phasewatch.sources.sources import SOURCES, History
from phasewatch.sources.target import Target

PRINTS = {name: row.fleet for name, row in FORMATS.items() if row.fleet is not None}

_LONGEST_WINDOW = 60.0


def command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help=f"What to judge: {', '.join(row.what for row in SOURCES)}."),
    ],
    context: typer.Context,
    duration: Annotated[
        float,
        typer.Option("--for", parser=positive, metavar="DURATION", help="How long servers are watched."),
    ] = "30s",  # type: ignore[assignment]
    interval: Interval = "2s",  # type: ignore[assignment]
    window: Annotated[
        float | None,
        typer.Option(
            parser=positive, metavar="DURATION", help=WINDOW_HELP, show_default="--for, at most 60s; recordings 60s"
        ),
    ] = None,
    objective: Objective = [],  # noqa: B006
    at: Annotated[
        float | None,
        typer.Option(
            parser=seconds_at, metavar="SECONDS", help="Moment of a recording to judge.", show_default="its end"
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="Output.", **one_of(*PRINTS))] = "table",
    estimator: EstimatorOption = "sums",
) -> None:
    """Exit code 0: all healthy, idle or asleep. 1: anything else, an idle server beside busy siblings too. 2: wrong
    usage. 3: nothing could be read, or too little for a verdict.
    """
    # Who asks about a server now is told what is wrong, not to wait.
    live = replace(settings_of((window or min(duration, _LONGEST_WINDOW),), objective, estimator), startup_grace=0.0)
    recorded = settings_of((window or _LONGEST_WINDOW,), objective, estimator)
    named = [(text, source_of(text)) for text in sources]
    histories = [(text, source) for text, source in named if isinstance(source, History)]
    targets = unique([source for _, source in named if isinstance(source, Target)])
    if targets and window is not None and window < 2 * interval:
        said = f"--window {format_duration(window)} is shorter than two intervals of {format_duration(interval)}"
        raise CommandError(f"{said}, so that no change shows in it; use a longer window or a shorter --interval")
    if at is not None and not histories:
        raise CommandError("--at applies to recordings only, and no source is one; remove it")
    if not targets:
        for option, parameter in (("--for", "duration"), ("--interval", "interval")):
            source = context.get_parameter_source(parameter)
            if source is not None and source.name != "DEFAULT":
                raise CommandError(f"{option} applies to servers only, and no source is one; remove it")
    fleets = [_recorded(text, history, recorded, at, len(histories) > 1) for text, history in histories]
    if targets:
        fleets.append(_watched(targets, live, duration, interval, alone=not histories))
    fleet = _joined(fleets)
    PRINTS[format](fleet, sys.stdout)
    raise typer.Exit(exit_code(fleet))


def exit_code(fleet: Fleet) -> int:
    """0 all well, 1 anything that wants a look, 3 too little read for a verdict."""
    states = {t.state for t in fleet.targets} | {e.state for e in fleet.engines}
    if any(e.wants_a_look for e in fleet.engines) or states & set(TROUBLE):
        return EXIT_UNHEALTHY
    undecided = states & {"warming_up", "starting"} or any(
        e.state == "serving" and e.verdict is None for e in fleet.engines
    )
    return EXIT_NOTHING_READ if undecided or not states else 0


def _recorded(text: str, history: History, settings: Settings, at: float | None, several: bool) -> Fleet:
    first, until = history.first, moment(at, history.first, history.end)
    if until < first:
        said = f"{text}: nothing recorded by second {until:g}; it begins at second {first:g}"
        raise CommandError(said, code=EXIT_NOTHING_READ)
    fleet = history.fleet(settings, until)
    return _renamed(fleet, f"{text.rstrip('/')}/") if several else fleet


def _renamed(fleet: Fleet, prefix: str) -> Fleet:
    """Recordings of different incidents may hold targets of the same name."""
    return replace(
        fleet,
        engines=tuple(replace(e, key=e.key._replace(target=prefix + e.key.target)) for e in fleet.engines),
        targets=tuple(replace(t, target=prefix + t.target) for t in fleet.targets),
    )


def _joined(fleets: Sequence[Fleet]) -> Fleet:
    """One document; its clock is that of the last source, a live one if there is any."""
    return replace(
        fleets[-1],
        engines=tuple(e for f in fleets for e in f.engines),
        models=tuple(m for f in fleets for m in f.models),
        targets=tuple(t for f in fleets for t in f.targets),
    )


def _watched(targets: Sequence[Target], settings: Settings, duration: float, interval: float, alone: bool) -> Fleet:
    begin = clock()
    shown = terminal.console(sys.stderr)
    names = ", ".join(t.name for t in targets) if len(targets) <= 3 else f"{len(targets)} servers"
    with closing(Watching(targets, settings, interval)) as watching, _progress(shown) as progress:
        progress(f"watching {names} for {duration:g} s (Ctrl-C judges what was seen until then)")
        watching.first_answers()
        if alone and not watching.ever_read:
            raise CommandError(*watching.errors.values(), code=EXIT_NOTHING_READ)
        for error in watching.errors.values():
            note(error)
        with interruptible():
            while (now := clock()) < begin + duration:
                watching.until(min(now + interval, begin + duration))
                progress(f"{clock() - begin:.0f} of {duration:g} s: {_so_far(watching.fleet())}")
        return watching.fleet()


def _so_far(fleet: Fleet) -> str:
    return "; ".join(f"{terminal.name(e)} {e.verdict or e.state}" for e in fleet.engines) or "no engine yet"


@contextmanager
def _progress(shown: Console) -> Iterator[Callable[[str], None]]:
    """A line that changes in place on a terminal; elsewhere the first line only, since a log is no place for ticks."""
    if shown.is_terminal:
        with shown.status("") as status:
            yield status.update
        return
    said: list[str] = []

    def once(text: str) -> None:
        if not said:
            said.append(text)
            note(text)

    yield once
